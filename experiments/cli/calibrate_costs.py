"""``fedge calibrate``: fit the physical model of time and power to tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli.command_options import AsJson, TableBatchSize, TableBoard, TableWorkload
from experiments.cli.command_output import make_console, print_json
from fedge.errors import BadInput
from fedge.user_catalogue import FOLDER_VARIABLE

if TYPE_CHECKING:
    from experiments.report.tables import Table
    from fedge.analysis.cost_calibration import CalibrationOutcome


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
    if as_json:
        print_json(outcomes)
    else:
        build_outcome_table(outcomes).print(make_console())


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
