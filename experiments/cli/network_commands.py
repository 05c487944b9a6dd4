"""``fedge layers``, ``select-board``, ``memory``, ``roofline`` and ``topology``: what a network needs of a board."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import (
    SEED_HELP,
    AsJson,
    Board,
    DefaultCommandGroup,
    InputShape,
    MaxPower,
    Network,
    OutFile,
    StepKind,
    build_options,
    command_group,
)
from experiments.cli.command_output import (
    Outputs,
    check_folder,
    check_output,
    make_console,
    print_json,
    print_line,
    show_progress,
    warn,
    write_output,
)
from fedge.atomic_files import write_text
from fedge.errors import RunFailed, check_known

if TYPE_CHECKING:
    from fedge.analysis.topology.topology_result import TopologyOptions
    from fedge.analysis.topology.variant_files import TrainingCheck


def layers(
    network: Network,
    *,
    batch_size: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per step.")] = 1,
    input_shape: InputShape = None,
    kind: StepKind = "infer",
    top: Annotated[int, typer.Option(min=0, help="Number of costliest layers to show.")] = 10,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: every layer as JSON, which is a NETWORK again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count FLOP, bytes, parameters and activations of a network by layer.

    Operators without a rule are named. A training step costs three times as much as a forward pass.

    Example: fedge layers mobilenet_v3_large --batch-size 16 --top 5
    """
    from experiments.report.analysis.network_terminal import print_layer_summary, print_uncounted
    from fedge.costs.layers.network_record import RECORD_FORMAT, network_to_dict
    from fedge.costs.layers.network_source import count_network

    outputs = Outputs(as_json, out)
    outputs.check(f'{{\n  "format": "{RECORD_FORMAT}"')
    summary = count_network(network, input_shape, batch_size=batch_size, kind=kind, top=top)
    outputs.deliver(network_to_dict(summary.network), lambda console: print_layer_summary(console, summary))
    if summary.network.unknown:
        print_uncounted(make_console(stderr=True), summary.network)


def select_board(
    *,
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="The workload: a known one, or any NETWORK of `fedge layers`.")
    ],
    max_power_w: MaxPower = None,
    max_epoch_s: Annotated[float | None, typer.Option(help="Limit of an epoch's time, in seconds.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of an epoch.")] = 50_000,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=2**16, help="Samples per step; by default the workload's own, otherwise 16."),
    ] = None,
    input_shape: InputShape = None,
    objective: Annotated[
        str, typer.Option("--objective", help="What to optimise: time, energy, or both (their product).")
    ] = "time",
    boards: Annotated[
        list[str] | None,
        typer.Option("--board", help="The board; may be repeated. By default all boards of the catalogue."),
    ] = None,
    kind: StepKind = "train",
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Rank boards, each in its best mode, by time, energy and fit in memory.

    Example: fedge select-board --workload resnet50 --batch-size 64 --max-power-w 15
    """
    parameters = dict(locals())
    from experiments.report.analysis.network_terminal import print_board_selection
    from fedge.analysis import board_selection
    from fedge.client.memory_scaling import estimate_usable_mb

    outputs = Outputs(as_json, out)
    outputs.check("{")
    limits = board_selection.BoardLimits(max_power_w, max_epoch_s)
    others = ("max_power_w", "max_epoch_s")
    options = build_options(board_selection.BoardSelectionOptions, parameters, others=others, limits=limits)
    selection = board_selection.select_board(options, estimate_usable_mb)
    data = board_selection.board_selection_to_dict(selection)
    outputs.deliver(data, lambda console: print_board_selection(console, selection))


memory = command_group("Memory and time of a training step, from the geometry of a network's layers.")

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Measured steps: NETWORK.csv and NETWORK.layers.json of each.")
]


@memory.command("eval")
def evaluate(
    *,
    data: Data,
    method: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas: perf4sight, fedge, or both.")
    ] = "perf4sight,fedge",
    leave_network_out: Annotated[
        bool, typer.Option("--leave-network-out", help="Also predict each network from the others alone.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help=SEED_HELP)] = 0,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate memory and time predictions on pruning levels or networks that are left out of the fit.

    Example: fedge memory eval --data profiles/perf4sight-tx2 --leave-network-out
    """
    from experiments.report.analysis.network_terminal import build_error_tables
    from experiments.report.tables import print_tables
    from fedge.costs.memory.memory_study import read_memory_study

    outputs = Outputs(as_json, out)
    outputs.check("[")
    study = read_memory_study(data, method, left_out=leave_network_out, seed=seed)
    if study.dropped_rows:
        counts = ", ".join(f"{network} {count}" for network, count in study.dropped_rows.items())
        warn(f"rows left out, of pruning levels without a geometry: {counts}")
    with show_progress(len(study.cells)) as report_cell:
        rows = study.run(report_cell)
    outputs.deliver(rows, lambda console: print_tables(console, build_error_tables(rows)))


@memory.command()
def predict(
    network: Network,
    *,
    board: Board = "tx2",
    batch_size: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per step.")] = 32,
    input_shape: InputShape = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Class of torch.optim, such as AdamW; SGD with momentum by default.")
    ] = None,
    mixed_precision: Annotated[bool, typer.Option("--mixed-precision", help="Compute in half precision.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict peak memory and time of a training step, and the largest batch that fits.

    Example: fedge memory predict mobilenet_v2 --board tx2 --batch-size 64 --optimizer AdamW
    """
    from fedge.analysis.memory_prediction import memory_prediction_to_dict, predict_memory
    from fedge.client.memory_scaling import estimate_usable_mb
    from fedge.costs.memory.optimizer_state import count_torch_optimizer
    from fedge.costs.memory.step_need import TrainingSetup

    state = 1.0 if optimizer is None else count_torch_optimizer(optimizer, "--optimizer")
    setup = TrainingSetup(state, mixed=mixed_precision)
    prediction = predict_memory(network, board, batch_size, input_shape, usable_mb=estimate_usable_mb, setup=setup)
    if as_json:
        print_json(memory_prediction_to_dict(prediction), indent=2)
        return
    from experiments.report.analysis.network_terminal import print_prediction

    print_prediction(make_console(), prediction)


@memory.command()
def fit(
    *,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: the coefficients as YAML.")],
    board: Annotated[str, typer.Option(help="The board; the one on which the steps were measured.")] = "tx2",
    source: Annotated[
        str, typer.Option("--origin", help="Origin of the measurements; shown with every prediction.")
    ] = ("SGD steps of pruned convolutional networks measured on a TX2"),
) -> None:
    """Fit the coefficients of the predictions to measured steps.

    Example: fedge memory fit --data profiles/perf4sight-tx2 --out memory.yaml
    """
    from fedge.costs.memory.step_need import fit_memory_calibration, memory_calibration_to_yaml
    from fedge.costs.memory.step_table import read_step_tables

    check_output("--out", out, "# What a training step needs")
    calibration = fit_memory_calibration(read_step_tables(data), board, source)
    write_output("--out", out, lambda path: write_text(path, memory_calibration_to_yaml(calibration)))
    spreads = f"memory {calibration.memory_sd_log:.1%}, time {calibration.step_sd_log:.1%}".replace("%", " %")
    print_line(f"Wrote {out}. Spread on a network left out: {spreads}.")


roofline = command_group(
    "Time and energy rooflines.\n\n"
    "`fedge roofline resnet50 --board agx-orin` is short for `fedge roofline NETWORK resnet50 --board agx-orin`.",
    DefaultCommandGroup,
)


@roofline.command("NETWORK")
def network(
    network: cli.Network,
    *,
    board: cli.Board,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Power mode: a preset's name, or as 12/2201.6/1300.5/3199. By default the chosen one.",
        ),
    ] = None,
    input_shape: cli.InputShape = None,
    batch_size: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per step.")] = 1,
    kind: cli.StepKind = "infer",
    max_slowdown: Annotated[
        float, typer.Option(help="Largest time of the chosen mode, as a multiple of MAXN's.")
    ] = 1.05,
    confidence: Annotated[float, typer.Option(help="Probability with which a limit is met.")] = 0.95,
    profiles: Annotated[
        Path | None,
        typer.Option(
            "--profiles", metavar="DIR", help="Fit to the inference tables in this folder instead of shipped profiles."
        ),
    ] = None,
    html: cli.ChartPage = None,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Place a network on a board's time and energy rooflines, and choose the mode of least energy within a slowdown.

    Example: fedge roofline resnet50 --board agx-orin --batch-size 16
    """
    parameters = dict(locals())
    from experiments.report.analysis.roofline_report import print_analysis, write_roofline_page
    from fedge.analysis.roofline import roofline_analysis

    outputs = Outputs(as_json, out, html)
    outputs.check(f'{{\n  "format": "{roofline_analysis.ROOFLINE_FORMAT}"')
    analysis = roofline_analysis.analyse_roofline(build_options(roofline_analysis.RooflineOptions, parameters))
    outputs.deliver(
        roofline_analysis.roofline_analysis_to_dict(analysis),
        lambda console: print_analysis(console, analysis),
        partial(write_roofline_page, analysis),
    )


@roofline.command("bench")
def bench(
    *,
    device: Annotated[str, typer.Option(help="Device of this machine: cpu or cuda.")] = "cpu",
    board: Annotated[str | None, typer.Option(help="The board; emulated, instead of this machine.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Power mode (of an emulated board): a preset's name, or as 12/2201.6/1300.5/3199. By default MAXN.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration in seconds (approximate).")] = 20.0,
    seed: cli.Seed = 0,
    out: cli.OutFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure a roofline's constants: kernels from few to many FLOP per byte.

    Example: fedge roofline bench --board agx-orin
    """
    from experiments.report.analysis.roofline_report import print_sweep
    from fedge.analysis.roofline.microbenchmark import REAL_DEVICES, measure_roofline

    outputs = Outputs(as_json, out)
    outputs.check('{\n  "device"')
    check_known("--device", device, REAL_DEVICES)
    sweep = measure_roofline(board or device, seconds, mode, seed)
    outputs.deliver(sweep, lambda console: print_sweep(console, sweep))


topology = command_group(
    "Channel-pruned variants of a network that fit a board's memory and time, and that train.\n\n"
    "`fedge topology NETWORK --board tx2` is short for `fedge topology find NETWORK --board tx2`.",
    DefaultCommandGroup,
)


@topology.command("find")
def find(
    network: cli.Network,
    *,
    board: cli.Board,
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 32,
    max_memory_mb: Annotated[
        float | None, typer.Option(help="Limit of training's memory; by default what the board leaves for it.")
    ] = None,
    max_step_s: Annotated[float | None, typer.Option(help="Limit of a step's time, in seconds, at MAXN.")] = None,
    input_shape: cli.InputShape = None,
    ranking: Annotated[
        str, typer.Option("--ranking", help="Ranking of the channels: l1 or l2 (norm of their weights), or random.")
    ] = "l1",
    round_to: Annotated[int, typer.Option(help="Keep a multiple of this many channels in every layer.")] = 1,
    variants: Annotated[int, typer.Option(help="Number of variants that fit to list, the largest first.")] = 4,
    confidence: Annotated[float, typer.Option(help="Probability with which a limit is met.")] = 0.84,
    seed: cli.Seed = 0,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write: a subfolder per variant, with its weights.")
    ] = None,
    out: cli.OutFile = None,
    html: cli.ChartPage = None,
    check_training: Annotated[
        bool, typer.Option("--check-training", help="Train the largest variant for some steps on this machine.")
    ] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Find the largest channel-pruned variants of a network that a board can train.

    Example: fedge topology find resnet50 --board tx2 --max-memory-mb 3000
    """
    parameters = dict(locals())
    from fedge.analysis.topology.topology_result import TopologyOptions

    options = build_options(TopologyOptions, parameters, others=("folder", "check_training"))
    print_variants(options, Outputs(as_json, out, html), folder=folder, check_training=check_training)


def print_variants(
    options: TopologyOptions, outputs: Outputs, *, folder: Path | None = None, check_training: bool = False
) -> None:
    """Find and deliver the variants that fit.

    Raises:
        BadInput: If the input is invalid or nothing fits.
        RunFailed: If the training check fails.
    """
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.topology_result import TOPOLOGY_FORMAT, find_variants, topology_result_to_dict
    from fedge.client.memory_scaling import estimate_usable_mb

    outputs.check(f'{{\n  "format": "{TOPOLOGY_FORMAT}"')
    if folder is not None:
        check_folder("--folder", folder)
    check = _check_in_process if check_training else None
    result = find_variants(options, estimate_usable_mb, folder=folder, check_training=check)
    view = partial(topology_report.print_topology, result=result)
    outputs.deliver(topology_result_to_dict(result), view, partial(topology_report.write_topology_page, result))
    training = result.training
    if training is not None and not training.is_loss_falling:
        raise RunFailed(f"the loss of {result.variants[0].variant.name} did not fall: {training.losses}")


def _check_in_process(folder: Path) -> TrainingCheck:
    """Train a variant in a process of its own, so that the measured memory is that of training alone."""
    from fedge.analysis.topology.variant_files import check_variant_training
    from fedge.child_processes import run_in_child

    return run_in_child(check_variant_training, folder)


@topology.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="VARIANT", help="A variant's folder, or the variant.json in it.")],
    every: Annotated[bool, typer.Option("--all", help="Show everything: every layer.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Show what a variant keeps of its network, layer by layer.

    Example: fedge topology show small/resnet50-0.53
    """
    from experiments.report.analysis import topology_report
    from fedge.analysis.topology.variant_files import read_variant, variant_to_dict

    variant = read_variant(file)
    view = partial(topology_report.print_variant, variant=variant, every_layer=every)
    Outputs(as_json).deliver(variant_to_dict(variant), view)
