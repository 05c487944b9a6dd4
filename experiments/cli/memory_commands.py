"""``fedge memory``: evaluate, predict and fit the needs of a training step."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.command_options import AsJson, Board, InputShape, Network, OutFile, command_group
from experiments.cli.command_output import (
    check_output,
    make_console,
    print_json,
    print_line,
    show_progress,
    warn,
    write_json,
    write_output,
)
from fedge.atomic_files import write_text

app = command_group("Memory and time of a training step, from the geometry of a network's layers.")

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Measured steps: NETWORK.csv and NETWORK.layers.json of each.")
]


@app.command("eval")
def evaluate(
    *,
    data: Data,
    method: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas: perf4sight, fedge, or both.")
    ] = "perf4sight,fedge",
    leave_network_out: Annotated[
        bool, typer.Option("--leave-network-out", help="Also predict each network from the others alone.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random choices.")] = 0,
    out: OutFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate memory and time predictions on pruning levels or networks that are left out of the fit.

    Example: fedge memory eval --data profiles/perf4sight-tx2 --leave-network-out
    """
    from experiments.report.analysis.network_terminal import build_error_tables
    from fedge.costs.memory.memory_study import read_memory_study

    check_output("--out", out, "[")
    study = read_memory_study(data, method, left_out=leave_network_out, seed=seed)
    if study.dropped_rows:
        counts = ", ".join(f"{network} {count}" for network, count in study.dropped_rows.items())
        warn(f"rows left out, of pruning levels without a geometry: {counts}")
    with show_progress(len(study.cells)) as report_cell:
        rows = study.run(report_cell)
    write_json(out, [asdict(row) for row in rows])
    if as_json:
        print_json(rows)
        return
    for table in build_error_tables(rows):
        table.print(make_console())


@app.command()
def predict(
    network: Network,
    *,
    board: Board = "tx2",
    batch_size: Annotated[int, typer.Option(min=1, max=2**16, help="Samples per step.")] = 32,
    input_shape: InputShape = None,
    as_json: AsJson = False,
) -> None:
    """Predict peak memory and time of a training step, and the largest batch that fits.

    Example: fedge memory predict mobilenet_v2 --board tx2 --batch-size 64
    """
    from fedge.analysis.memory_prediction import memory_prediction_to_dict, predict_memory
    from fedge.client.memory_scaling import estimate_usable_mb

    prediction = predict_memory(network, board, batch_size, input_shape, usable_mb=estimate_usable_mb)
    if as_json:
        print_json(memory_prediction_to_dict(prediction), indent=2)
        return
    from experiments.report.analysis.network_terminal import print_prediction

    print_prediction(make_console(), prediction)


@app.command()
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

    check_output("--out", out, "#")
    calibration = fit_memory_calibration(read_step_tables(data), board, source)
    write_output("--out", out, lambda path: write_text(path, memory_calibration_to_yaml(calibration)))
    spreads = f"memory {calibration.memory_sd_log:.1%}, time {calibration.step_sd_log:.1%}".replace("%", " %")
    print_line(f"Wrote {out}. Spread on a network left out: {spreads}.")
