"""What every run begins with: the initial model, and every board's front as far as its prior knows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from fedge.errors import RunFailed
from fedge.interfaces import LearningTask
from fedge.telemetry.rows import RECORDED, EventRow
from fedge.telemetry.store import Row
from server.asking import Asking
from server.checkpoint import History, Progress
from server.merging import told_of

NOTHING_MEASURED = "its files are a recorded folder: its watts were written there, and nothing is measured"


class Tables(Protocol):
    """Where rows go."""

    def append(self, rows: Iterable[Row]) -> None: ...


def opened(asking: Asking, task: LearningTask, tables: Tables, names: Sequence[str]) -> Progress:
    """The run before its first round; a board of ``names`` that fails is an event.

    Raises ``RunFailed`` when all of them do.
    """
    arrays = task.initial_arrays(asking.experiment.seed)
    answers = {name: reply.answer for name, reply in asking.fronts(names, arrays).items()}
    failed = {name: answers[name].error for name in names if answers[name].front is None}
    tables.append(EventRow(0.0, 0, name, "failed", error or "no front") for name, error in failed.items())
    if len(failed) == len(names):
        raise RunFailed(f"no board is ready: {told_of({name: error or 'no front' for name, error in failed.items()})}")
    recorded = [name for name in names if answers[name].recorded]
    tables.append(EventRow(0.0, 0, name, RECORDED, NOTHING_MEASURED) for name in recorded)
    fronts = {name: front for name in names if (front := answers[name].front) is not None}
    histories = {name: History(samples=answers[name].samples) for name in names}
    return Progress(0, 0.0, arrays, fronts=fronts, histories=histories)
