"""Every table of a report as two files: NAME.csv and NAME.tex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.report import error_quantiles, memory, over_seeds, serving, tables
from experiments.report.cells import Table
from experiments.report.groups import grouped
from experiments.report.runs import Run, load_run, load_runs
from fedge.errors import BadInput
from fedge.telemetry import run_folder


def write_tables(folders: Sequence[Path], out: Path) -> tuple[Path, ...]:
    """Write them all into ``out``, each replaced as a whole; raises ``BadInput`` for a folder that is no run's."""
    if not folders:
        raise BadInput("report", "no run folder", "one or more")
    found = of_one(load_run(folders[0])) if len(folders) == 1 else of_several(load_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for table in found:
        for suffix, told in (("csv", table.csv), ("tex", table.latex)):
            written.append(out / f"{table.key}.{suffix}")
            run_folder.write_text(written[-1], told)
    return tuple(written)


def of_one(run: Run) -> tuple[Table, ...]:
    """The tables of one run's report, with every row."""
    found = (
        tables.provenance(run),
        tables.errors_by_samples(run),
        error_quantiles.table(run),
        serving.served(run),
        memory.lowered(run),
        tables.events(run),
        tables.last_round(run),
    )
    return tuple(table for table in found if table.rows)


def of_several(runs: Sequence[Run]) -> tuple[Table, ...]:
    """The tables of a comparison; those over seeds where there are several."""
    groups = grouped(runs)
    seeds = over_seeds.several_seeds(groups)
    found = (
        tables.side_by_side(runs),
        *((over_seeds.summary(runs, groups), over_seeds.differences(runs, groups)) if seeds else ()),
        tables.prediction_errors(runs),
        tables.labels(runs),
        tables.setup(runs),
    )
    return tuple(table for table in found if table.rows)
