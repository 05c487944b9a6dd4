"""TensorBoard exporter: metrics as event files, written with TensorBoard's own writer; steps are round numbers.

Each session writes a new file, opened with its first round. The file states its first round, and readers then discard
later rounds of earlier files, so that a round that is repeated after a resume appears once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedge.experiment import Experiment
from fedge.telemetry.store import Row
from server.exporters.run_metrics import RoundMetrics, build_collector, collect_labels, flatten_experiment, to_yaml

FOLDER = "tensorboard"
FILE = "events.out.tfevents.{number:010d}.fedge"
"""File name pattern; readers take the files of a folder in the order of their names."""


class TensorBoard:
    """Exports a run to TensorBoard event files; the wall time of an event is simulated time in seconds."""

    def __init__(self, experiment: Experiment, folder: Path, *, out: str = FOLDER) -> None:
        self._experiment, self._folder = experiment, folder / out
        self._collector = build_collector(experiment)
        self._writer: Any = None
        self._closed = False

    def append(self, rows: Iterable[Row]) -> None:
        """Write the rounds that ``rows`` complete; they are on disk when this returns."""
        if self._closed:
            raise ValueError("the exporter is closed")
        for metrics in self._collector.collect_rounds(rows):
            if self._writer is None:
                self._writer = self._open_writer(metrics)
            self._write(metrics.end_s, metrics.round, summary=_build_summary(metrics.figures))
            self._writer.flush()

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open_writer(self, first: RoundMetrics) -> Any:
        """Open a new file after the existing ones; the first file also describes the experiment."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        earlier = len(list(self._folder.glob("events.out.tfevents.*")))
        path = self._folder / FILE.format(number=earlier)
        self._writer = RecordWriter(path.open("xb"))
        self._write(first.end_s, 0, file_version="brain.Event:2")
        if earlier:
            self._write(first.end_s, first.round, session_log=SessionLog(status=SessionLog.START))
        else:
            for summary in _build_descriptions(self._experiment):
                self._write(0.0, 0, summary=summary)
        return self._writer

    def _write(self, at_s: float, step: int, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=at_s, step=step, **what).SerializeToString())


def _build_summary(figures: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()])


def _build_descriptions(experiment: Experiment) -> tuple[Any, ...]:
    """Return the experiment as text and hyperparameters, and the labels of the boards' figures."""
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.text.summary_v2 import text_pb

    yaml = "".join(f"    {line}\n" for line in to_yaml(experiment).splitlines())
    labels = "\n".join(f"- {name}: {label}" for name, label in collect_labels(experiment).items())
    metrics = [hparams.Metric(tag) for tag in ("round/accuracy", "round/energy_j", "round/round_s")]
    return (
        text_pb("experiment", yaml),
        text_pb("figures", labels),
        hparams.hparams_config_pb([], metrics, time_created_secs=0.0),
        hparams.hparams_pb(flatten_experiment(experiment), trial_id=experiment.name, start_time_secs=0.0),
    )
