"""What one board brings to a round, and what the round gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedge.experiment import ExplorationSpec
from fedge.protocols import Device, Explorer, Policy, Predictor
from fedge.types import (
    Decision,
    Front,
    Measurement,
    Modes,
    PowerMode,
    Prediction,
    Predictions,
    TrainResult,
    Workload,
)

PROBE_EXPLORER = "active"
"""What chooses the first modes that a board tries."""
POWER_PLANNING_POLICY = "fastest"
"""The policy that plans with the boards' watts, for which their fronts need the modes of low power too."""


def keep_unchanged(measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements themselves."""
    return measurements


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What one board brings to a round.

    ``candidates`` are the modes it may choose, ``maxn`` is the fastest of them, ``waiting`` the one it waits in.
    ``explorer`` makes an explorer over some modes; without one nothing is tried for what it teaches alone.
    ``allowed_s`` are the seconds per minibatch that its rounds so far allowed.
    """

    board: str
    device: Device
    predictor: Predictor
    policy: Policy
    workload: Workload
    candidates: Modes
    fastest_mode: PowerMode
    waiting_mode: PowerMode
    exploration: ExplorationSpec
    make_explorer: Callable[[Modes], Explorer] | None = None
    step_budgets_s: tuple[float, ...] = ()
    includes_low_power: bool = False
    """Whether its fronts also hold the modes that draw least for their speed: some plans limit the watts."""
    normalize: Callable[[Sequence[Measurement]], Sequence[Measurement]] = keep_unchanged
    """Measurements as the modes would usually be: a standing service takes another share of a short stretch."""
    lost_s: float = 0.0
    """Seconds of this round that tries which ran out of memory took before."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What one round gave."""

    trained: TrainResult
    decision: Decision
    measured: Measurement
    probes: tuple[Measurement, ...]
    mixed: Measurement | None
    predicted: Prediction
    predictions: Predictions
    """Of every candidate, as the decision was made."""
    own_samples: int
    """How many of the board's own measurements they were fitted to, and how many of other boards'."""
    shared_samples: int
    front: Front
    """The board's offer for the next round, with this round's measurement learnt."""
    step_budget_s: float | None
    """Seconds per minibatch that the round's deadline allowed; None without one."""
