"""``fedge calibrate``: fit the physical model of time and power to tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.cli.command_options import AsJson, TableDevice, TableWorkload
from experiments.cli.command_output import make_console, print_json
from fedge.errors import BadInput
from fedge.user_catalogue import FOLDER_VARIABLE

if TYPE_CHECKING:
    from rich.table import Table

    from fedge.analysis.cost_calibration import CalibrationOutcome


def calibrate(
    tables: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Tables in the normal form (CSV).")],
    device: TableDevice = None,
    workload: TableWorkload = None,
    batch_size: Annotated[int | None, typer.Option(help="The batch size to fit, if a table holds several.")] = None,
    kind: Annotated[
        Literal["train", "infer"] | None,
        typer.Option(help="Kind of step; infer gives one file per batch size. By default from the table's folder."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the coefficients.")] = Path("calibrated"),
    origin: Annotated[
        str, typer.Option(help="Author of the measurements; a table without a label then counts as measured.")
    ] = "",
    to_knowledge: Annotated[
        bool, typer.Option("--to-knowledge", help="Write into $FEDGE_KNOWLEDGE, where profiles are found by name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fit the physical model of time and power to tables."""
    from fedge.analysis.cost_calibration import calibrate_tables
    from fedge.knowledge.knowledge_folder import COSTS

    knowledge = _find_knowledge() if to_knowledge else None
    out = out if knowledge is None else knowledge / COSTS
    outcomes = calibrate_tables(
        tables, device=device, workload=workload, batch_size=batch_size, kind=kind, out=out, origin=origin
    )
    if knowledge is not None:
        from experiments.backends.run_knowledge import import_path

        for outcome in outcomes:
            import_path(Path(str(outcome.written)), knowledge)
    if as_json:
        print_json(outcomes)
    else:
        make_console().print(build_outcome_table(outcomes))


def _find_knowledge() -> Path:
    """Return the knowledge folder in which profiles are found by name; raises ``BadInput`` if none is named."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        raise BadInput("--to-knowledge", f"no {FOLDER_VARIABLE}", "the path of a knowledge folder in this variable")
    return Path(named).expanduser()


def build_outcome_table(outcomes: Sequence[CalibrationOutcome]) -> Table:
    """Build a terminal table of the outcomes."""
    from rich.table import Table

    table = Table(title="Calibration error over all rows, percent")
    words = ("board", "workload", "kind", "label", "written")
    errors = ("time MAPE", "p95", "power MAPE", "p95")
    for heading in ("board", "workload", "kind", "batch", "rows", *errors, "label", "written"):
        table.add_column(heading, justify="left" if heading in words else "right")
    for outcome in outcomes:
        shares = (outcome.time_mape, outcome.time_p95_ape, outcome.power_mape, outcome.power_p95_ape)
        names = (outcome.device, outcome.workload, outcome.kind, str(outcome.batch_size))
        rows = f"{outcome.rows}" + (f" (+{outcome.duplicates} repeated)" if outcome.duplicates else "")
        percents = (f"{100 * share:.1f}" for share in shares)
        table.add_row(*names, rows, *percents, outcome.label, outcome.written or "-")
    return table


def register_commands(app: typer.Typer) -> None:
    """Add the command to ``fedge``."""
    app.command()(calibrate)
