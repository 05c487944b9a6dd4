"""MLflow exporter: one MLflow run per run, with metrics by round, parameters, label tags, and files at the end."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.json_reader import read_json
from fedge.telemetry.run_folder import REPORT, SUMMARY, write_json
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import RECORDED, EventRow
from server.exporters.run_metrics import RoundMetrics, build_collector, collect_labels, flatten_experiment, to_yaml

FOLDER, STORE, RUNS = "mlflow", "mlflow.db", "runs.json"
LAST_METRIC = "round/accuracy"
"""Logged last in each round, so that its highest step is the last round that MLflow has completely."""
IN_A_BATCH, PARAMS_IN_A_BATCH, LONGEST_PARAM = 900, 100, 500
# Metrics per request, parameters per request and characters per parameter; MLflow accepts 1000, 100 and, in older
# versions, 500.
MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""Switches off MLflow's own telemetry, and lets an unreachable server block a run for seconds instead of many
minutes.
"""
FORCED_SETTINGS = ("MLFLOW_DISABLE_TELEMETRY",)
BUDGET_EVENT = "budget"
"""Kind of the event with which a run ends early but successfully."""


class MLflow:
    """Exports a run to an MLflow tracking server or a local SQLite file.

    The MLflow run has the name of the run folder. Timestamps of metrics are simulated time. MLflow writes plain folders
    no longer by default, hence SQLite.

    Args:
        tracking_uri: Address of the tracking server; None for a SQLite file in ``out``.
        out: Folder of the SQLite file, relative to the run folder.
        name: Name of the MLflow experiment; None for the name of the fedge experiment.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        *,
        tracking_uri: str | None = None,
        out: str = FOLDER,
        name: str | None = None,
    ) -> None:
        self._experiment, self._folder, self._name = experiment, folder, name or experiment.name
        self._out, self._local = folder / out, tracking_uri is None
        self._uri = tracking_uri or f"sqlite:///{self._out / STORE}"
        self._collector = build_collector(experiment)
        self._recorded: set[str] = set()
        self._last = 0
        self._ended = self._closed = self._going = False
        self._client: Any = None
        self._run = ""

    @staticmethod
    def check_options(*, tracking_uri: str | None = None, out: str | None = None, **_others: object) -> None:
        """Check the exporter's options.

        Raises:
            BadInput: Options exclude each other, or the address contains a password, which would be stored with the
                run.
        """
        if tracking_uri is not None and out is not None:
            raise BadInput("options.out", repr(out), "no folder beside a tracking_uri, which says where it all goes")
        if tracking_uri is not None and urlsplit(tracking_uri).password:
            right = "an address without it; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise BadInput("options.tracking_uri", "an address with a password", right)

    def append(self, rows: Iterable[Row]) -> None:
        """Log the rounds that ``rows`` complete, each once."""
        if self._closed:
            raise ValueError("the exporter is closed")
        rows = tuple(rows)
        self._note_events(row for row in rows if isinstance(row, EventRow))
        for metrics in self._collector.collect_rounds(rows):
            self._mark_running()
            if metrics.round > self._last:
                self._log_round(metrics)

    def close(self) -> None:
        """Attach the report and the summary if they exist, and set the final status of the MLflow run."""
        if self._closed:
            return
        self._closed = True
        if self._going:
            self.keep([self._folder / REPORT, self._folder / SUMMARY])
            over = self._ended or self._last >= self._experiment.rounds
            self._client.set_terminated(self._run, "FINISHED" if over else "FAILED")

    def keep(self, files: Sequence[Path]) -> None:
        """Attach the existing ones of ``files`` to the MLflow run; called again after the run for later files."""
        self._open()
        for path in files:
            if path.is_file():
                self._client.log_artifact(self._run, str(path))

    def _note_events(self, events: Iterable[EventRow]) -> None:
        for event in events:
            self._ended |= event.kind == BUDGET_EVENT
            if event.kind == RECORDED and event.board and event.board not in self._recorded:
                self._recorded.add(event.board)
                if self._client is not None:
                    self._set_label_tags()

    def _mark_running(self) -> None:
        self._open()
        if not self._going:
            self._client.update_run(self._run, status="RUNNING")
            self._going = True

    def _open(self) -> None:
        """Resume the MLflow run that this folder has at this address, or create one."""
        if self._client is not None:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        self._client = build_mlflow_client(self._uri)
        path = self._folder / FOLDER / RUNS
        known = read_json(path, "runs by address, as fedge wrote them") if path.is_file() else {}
        self._run = self._find_active_run(known.get(self._uri)) or self._create_run()
        write_json(path, {**known, self._uri: self._run})
        self._last = max((m.step for m in self._client.get_metric_history(self._run, LAST_METRIC)), default=0)

    def _find_active_run(self, run: str | None) -> str | None:
        """Return ``run`` if it still exists and is not deleted, else None."""
        from mlflow.exceptions import MlflowException

        try:
            if run is None or self._client.get_run(run).info.lifecycle_stage != "active":
                return None
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run

    def _create_run(self) -> str:
        from mlflow.entities import Param

        existing = self._client.get_experiment_by_name(self._name)
        place = (self._out / "artifacts").resolve().as_uri() if self._local else None
        group = (
            existing.experiment_id if existing else self._client.create_experiment(self._name, artifact_location=place)
        )
        run = str(self._client.create_run(group, run_name=self._folder.name).info.run_id)
        params = (Param(key, str(value)[:LONGEST_PARAM]) for key, value in flatten_experiment(self._experiment).items())
        for some in _split_batches(params, PARAMS_IN_A_BATCH):
            self._client.log_batch(run, params=some)
        self._client.log_text(run, to_yaml(self._experiment), "experiment.yaml")
        self._run = run
        self._set_label_tags()
        return run

    def _set_label_tags(self) -> None:
        """Tag the MLflow run with the label of each fleet entry's figures."""
        for name, label in collect_labels(self._experiment, self._recorded).items():
            self._client.set_tag(self._run, f"fedge.label.{name}", label)

    def _log_round(self, metrics: RoundMetrics) -> None:
        from mlflow.entities import Metric

        at_ms = round(metrics.end_s * 1000.0)
        figures = sorted(metrics.figures.items(), key=lambda each: each[0] == LAST_METRIC)
        points = (Metric(key, value, at_ms, metrics.round) for key, value in figures)
        for some in _split_batches(points, IN_A_BATCH):
            self._client.log_batch(self._run, metrics=some)
        self._last = metrics.round


def _split_batches(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(values)
    while some := list(islice(remaining, size)):
        yield some


def build_mlflow_client(uri: str) -> Any:
    """Return MLflow's client, with reduced logging and without telemetry."""
    for key, value in MLFLOW_ENVIRONMENT.items():
        if key in FORCED_SETTINGS:
            os.environ[key] = value
        os.environ.setdefault(key, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)
