"""Runs in Python: a run's tables, figures and summary, and several runs side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.backends import launcher
from experiments.backends.run_list import find_state
from experiments.report.quantities import energy, format_metric
from fedge.errors import BadInput, check_known
from fedge.experiment import Experiment
from fedge.json_reader import read_json
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import open_run

if TYPE_CHECKING:
    from experiments.report.page import Section
    from experiments.report.tables import Table


def to_frame(table: Any, *, arrow: bool = False) -> Any:
    """Return an Arrow table as a pandas DataFrame, or as it is if ``arrow`` or if pandas is not installed."""
    if not arrow:
        try:
            return table.to_pandas(maps_as_pydicts="strict")
        except ImportError:
            pass
    return table


class _ChartedRuns:
    """Figures and tables of a page of the report, by their names."""

    def _build_sections(self) -> Sequence[Section]:
        raise NotImplementedError

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the names of the report's charts."""
        return tuple(chart.key for section in self._build_sections() for chart in section.charts)

    def figure(self, name: str) -> Any:
        """Return a chart of the report as a ``plotly.graph_objects.Figure``.

        Raises:
            UnknownName: If there is no such chart; ``figures`` lists them.
        """
        from experiments.report.chart import to_figure

        charts = {chart.key: chart for section in self._build_sections() for chart in section.charts}
        check_known("figure", name, charts)
        return to_figure(charts[name])


class Run(_ChartedRuns):
    """A run's folder, finished or not.

    Attributes:
        folder: The folder.
        experiment: The resolved experiment.

    Raises:
        BadInput: If the folder is not that of a run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self.experiment: Experiment = launcher.load_saved_experiment(self.folder)

    def __repr__(self) -> str:
        summary, done = self.summary, self.rounds(arrow=True).num_rows
        reached, metric = summary.get("final_accuracy"), self.experiment.workload.metric
        facts = [
            f"{done} of {self.experiment.rounds} rounds",
            *([] if reached is None else [f"{metric} {format_metric(metric, reached)}"]),
            *([energy(summary["energy_j"])] if done else []),
            self.state,
        ]
        return f"Run({self.name}: {self.experiment.policy.name}, {', '.join(facts)}; {self.folder})"

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self.experiment.name

    @property
    def state(self) -> str:
        """Return ``not started``, ``running``, ``stopped`` or ``finished``."""
        return find_state(self.folder, self.experiment)

    @property
    def summary(self) -> dict[str, Any]:
        """Return the figures of the run; before its end those of its rounds so far."""
        try:
            stored = read_json(self.folder / run_folder.SUMMARY, "the summary that the run wrote", finite=False)
        except BadInput:
            stored = None
        if isinstance(stored, dict) and self.experiment.backend != "flower":  # which stores no figures
            return stored
        return launcher.summarise_rows(self.experiment, self.folder)

    def rounds(self, *, arrow: bool = False) -> Any:
        """Return one row per round, as a pandas DataFrame; as an Arrow table if ``arrow`` or without pandas."""
        return self._read("rounds", arrow)

    def clients(self, *, arrow: bool = False) -> Any:
        """Return one row per client and round, in the same form as ``rounds``."""
        return self._read("clients", arrow)

    def evaluations(self, *, arrow: bool = False) -> Any:
        """Return one row per evaluation on a client, in the same form as ``rounds``."""
        return self._read("evaluations", arrow)

    def events(self, *, arrow: bool = False) -> Any:
        """Return one row per deviation from the plan, in the same form as ``rounds``."""
        return self._read("events", arrow)

    def samples(self, *, arrow: bool = False) -> Any:
        """Return the boards' power, temperature and clocks over time, in the same form as ``rounds``."""
        return self._read("samples", arrow)

    def _read(self, table: str, arrow: bool) -> Any:
        with open_run(self.folder) as reader:
            return to_frame(reader.arrow(table), arrow=arrow)

    def query(self, sql: str, *, arrow: bool = False) -> Any:
        """Return the answer to one SELECT over these tables, in the same form as ``rounds``.

        Raises:
            BadInput: If the statement is invalid.
        """
        with open_run(self.folder) as reader:
            return to_frame(reader.query(sql), arrow=arrow)

    def _build_sections(self) -> Sequence[Section]:
        from experiments.report.run.loaded_runs import load_run
        from experiments.report.run.run_page import build_run_sections

        return build_run_sections(load_run(self.folder))

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML page and return its path; by default ``report.html`` in the run's folder."""
        from experiments.report.run.run_page import write_report

        target = self.folder / run_folder.REPORT if path is None else Path(path)
        write_report([self.folder], target)
        return target.resolve()


class RunComparison(_ChartedRuns):
    """Several runs side by side; runs that differ only in the seed form one group.

    Attributes:
        runs: The runs.

    Raises:
        BadInput: If there is none.
    """

    def __init__(self, runs: Sequence[Run | str | Path]) -> None:
        self.runs = tuple(run if isinstance(run, Run) else Run(run) for run in runs)
        if not self.runs:
            raise BadInput("compare", "no run", "one or more")

    def __repr__(self) -> str:
        return f"RunComparison({', '.join(run.folder.name for run in self.runs)})"

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the comparison's tables."""
        return tuple(table.key for table in self._list_tables())

    def table(self, name: str = "runs") -> Any:
        """Return a table of the comparison as a pandas DataFrame, or as an Arrow table without pandas.

        Raises:
            UnknownName: If there is no such table; ``tables`` lists them.
        """
        import pyarrow.csv

        tables = {table.key: table for table in self._list_tables()}
        check_known("table", name, tables)
        return to_frame(pyarrow.csv.read_csv(io.BytesIO(tables[name].csv.encode())))

    def _list_tables(self) -> Sequence[Table]:
        from experiments.report.run.comparison_page import list_comparison_tables
        from experiments.report.run.loaded_runs import load_runs

        loaded = load_runs([run.folder for run in self.runs])
        return [table for table in list_comparison_tables(loaded) if table.rows]

    def _build_sections(self) -> Sequence[Section]:
        from experiments.report.run.comparison_page import build_comparison_sections
        from experiments.report.run.loaded_runs import load_runs

        return build_comparison_sections(load_runs([run.folder for run in self.runs]))

    def report(self, path: str | Path) -> Path:
        """Write the comparison as one HTML page and return its path."""
        from experiments.report.run.run_page import write_report

        write_report([run.folder for run in self.runs], Path(path))
        return Path(path).resolve()
