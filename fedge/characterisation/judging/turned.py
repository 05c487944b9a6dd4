"""One value that a knob could be turned to, and what a model says of it."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.setting import Value
from fedge.pipeline.records import Pipeline


@dataclass(frozen=True, slots=True, eq=False)
class Next:
    """A knob and its next value, the pipeline that it makes, and the reason in words."""

    knob: str
    then: Value
    pipeline: Pipeline
    why: str
    error: float
    """The model's, of this change, relative to the epoch: less than this is not worth telling."""
    same_work: bool = True
    """Whether the board computes just the same, so that joules follow the time."""
    e2e_s: Estimate | None = None
    """Where the pipeline alone does not tell the interval."""
    power: Estimate | None = None
    """Watts then by watts now, where the work is not the same and that is known."""
