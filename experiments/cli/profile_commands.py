"""``fedge profile`` and ``calibrate``: measure the power modes of a board, and fit the physical model to the tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli import command_options as cli
from experiments.cli.command_options import AsJson, TableBatchSize, TableBoard, TableWorkload, build_options
from experiments.cli.command_output import Outputs, check_folder, print_json, print_line, show_bar, warn
from experiments.report.quantities import duration
from fedge.errors import BadInput
from fedge.phases import begin_phase
from fedge.user_catalogue import FOLDER_VARIABLE

if TYPE_CHECKING:
    from experiments.report.tables import Table
    from fedge.analysis.cost_calibration import CalibrationOutcome
    from fedge.characterisation.board_profile import ProfileOutcome, ProfilingCampaign
    from fedge.characterisation.profiling_journal import ProfilingHistory


def profile(
    *,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The workload, such as resnet18-imagenet. Here: also a task file (.py). Emulated: also any NETWORK of "
            "`fedge layers`.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="TABLE", help="File to write: the table (CSV). An unfinished one is continued.")
    ],
    board: Annotated[
        str, typer.Option(help="The board: here, or one of the catalogue, which is emulated: emulated:agx-orin.")
    ] = "here",
    modes: cli.ProfiledModes = "50",
    explorer: cli.ModeExplorer = "active",
    batch_size: cli.BatchSize = None,
    input_shape: cli.InputShape = None,
    kind: cli.StepKind = "train",
    max_mode_s: cli.MaxModeTime = None,
    budget_s: cli.ProfilingBudget = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait, within the budget, while a run works with this board.")
    ] = False,
    seed: cli.Seed = 0,
    settings: cli.Settings = None,
    as_json: cli.AsJson = False,
) -> None:
    """Measure a board's time and power in many modes, each until it has settled.

    It can be stopped: the same command goes on.

    Example: fedge profile --board emulated:nano --workload resnet18-imagenet --modes 20 --out nano.csv
    """
    parameters = dict(locals())
    from fedge.characterisation.board_profile import ProfileOptions, profile_board

    options = build_options(ProfileOptions, parameters)
    outcome = profile_board(options, note=warn, show_progress=show_progress)
    print_json(outcome) if as_json else print_line(describe_profile(outcome))


def describe_profile(outcome: ProfileOutcome) -> str:
    """Describe the table and its cost in one line."""
    cost = f"{duration(outcome.board_s)} of board time, {outcome.board_j / 1e3:.2f} kJ"
    if outcome.file is None:
        return f"nothing written: all {outcome.failed} modes failed; {cost}"
    counts = {"not settled": outcome.not_settled, "failed": outcome.failed}
    odd = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"written: {outcome.file}, {outcome.modes} modes{f' ({odd})' if odd else ''}; {cost}"


@contextmanager
def show_progress(campaign: ProfilingCampaign) -> Iterator[Callable[[str], None]]:
    """Show a progress line: mode i of n, minutes left, the mode; silent without a terminal."""
    with show_bar(campaign.total) as show:

        def report(text: str) -> None:
            past = campaign.journal.past
            tried = len(past.done) + len(past.failed)
            place = _describe_progress(past, tried, campaign.total)
            show(tried, f"{place}: {text}")
            begin_phase(f"{place}: {text}")

        yield report


def _describe_progress(past: ProfilingHistory, tried: int, total: int) -> str:
    """Describe the position and the remaining board time at the pace so far."""
    place = f"mode {min(tried + 1, total)} of {total}"
    if not past.done:
        return place
    per_mode_s = sum(mode.seconds for mode in past.done) / len(past.done)
    return f"{place}, {duration((total - tried) * per_mode_s, 1)} left"


def calibrate(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Tables in the normal form (CSV).")],
    board: TableBoard = None,
    workload: TableWorkload = None,
    batch_size: TableBatchSize = None,
    kind: Annotated[
        Literal["train", "infer"] | None,
        typer.Option(help="Kind of step; by default from the table's folder. infer gives one file per batch size."),
    ] = None,
    *,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Folder to write: the coefficients.")] = Path(
        "calibrated"
    ),
    origin: Annotated[
        str, typer.Option(help="Origin of the measurements; a table without a label then counts as measured.")
    ] = "",
    to_knowledge: Annotated[
        bool, typer.Option("--to-knowledge", help="Write into $FEDGE_KNOWLEDGE, where profiles are found by name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fit the physical model of time and power to tables.

    Example: fedge calibrate orin-nano/train/resnet18-imagenet.csv --folder calibrated
    """
    if not to_knowledge:
        check_folder("--folder", folder)
    from fedge.analysis.cost_calibration import calibrate_tables
    from fedge.knowledge.knowledge_folder import COSTS

    knowledge = _find_knowledge() if to_knowledge else None
    folder = folder if knowledge is None else knowledge / COSTS
    outcomes = calibrate_tables(
        tables, board=board, workload=workload, batch_size=batch_size, kind=kind, folder=folder, origin=origin
    )
    if knowledge is not None:
        from experiments.backends.run_knowledge import import_path

        for outcome in outcomes:
            import_path(Path(str(outcome.written)), knowledge)
    Outputs(as_json).deliver(outcomes, lambda console: build_outcome_table(outcomes).print(console))


def _find_knowledge() -> Path:
    """Return the knowledge folder in which profiles are found by name; raises ``BadInput`` if none is named."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        raise BadInput("--to-knowledge", f"no {FOLDER_VARIABLE}", "the path of a knowledge folder in this variable")
    return Path(named).expanduser()


def build_outcome_table(outcomes: Sequence[CalibrationOutcome]) -> Table:
    """Build a table of the outcomes."""
    from experiments.report.tables import Table, number_cell, text_cell, value_cell

    rows = []
    for one in outcomes:
        shares = (one.time_mape, one.time_p95_ape, one.power_mape, one.power_p95_ape)
        repeated = f" (+{one.duplicates} repeated)" if one.duplicates else ""
        rows.append(
            (
                *map(text_cell, (one.device, one.workload, one.kind)),
                value_cell(one.batch_size),
                number_cell(f"{one.rows}{repeated}", one.rows),
                *(value_cell(100 * share, ".1f", "%") for share in shares),
                text_cell(one.label),
                text_cell(one.written),
            )
        )
    errors = ("time MAPE", "p95", "power MAPE", "p95")
    heads = ("board", "workload", "kind", "batch", "rows", *errors, "label", "written")
    return Table("calibration", heads, tuple(rows), "Calibration error over all rows, percent")
