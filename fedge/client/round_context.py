"""The inputs and the result of one client's round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedge.client.corrections import Correction
from fedge.experiment import ExplorationSpec
from fedge.protocols import Device, Explorer, Policy, Predictor
from fedge.telemetry.progress_reporter import SILENT_REPORTER, ProgressReporter
from fedge.types import (
    Decision,
    Front,
    Measurement,
    Modes,
    PowerMode,
    Prediction,
    Predictions,
    TrainingScale,
    TrainResult,
    Workload,
)


def no_time_limit() -> None:
    """Return None: the default of ``RoundContext.time_left_s``."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundContext:
    """A client's device, models and settings for one round.

    Attributes:
        board: Name of the client.
        device: Device that sets modes and measures steps.
        predictor: Predictor of step time and power in the reference condition of ``corrections``.
        policy: Policy that chooses the mode.
        policy_reads_points: Whether it may read the points of the front, which take longer to find than the decision.
        workload: Work of one step.
        candidates: Modes that are predicted; corrections may rule some of them out.
        fastest_mode: Fastest of the candidates.
        waiting_mode: Mode in which the client waits.
        exploration: Limits on probing.
        make_explorer: Creates an explorer over the given modes; None turns off probes that only gain information.
        step_budgets_s: Seconds per step that the deadlines of earlier rounds allowed.
        includes_low_power: Whether fronts also include the modes of least power for their speed, for plans that limit
            the watts.
        corrections: Differences between this round and the predictor's reference condition, the outermost first.
        scale: Training scale of the round's measurements; None for the requested one.
        lost_s: Seconds of this round that attempts which ran out of memory took before it.
        learns: Whether predictions are fitted to all measurements; otherwise only to the board's first one.
        time_left_s: Returns the seconds of wall time for which the reply still counts, or None without a limit.
        reporter: Receives the progress of the round.
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
    policy_reads_points: bool = True
    make_explorer: Callable[[Modes], Explorer] | None = None
    step_budgets_s: tuple[float, ...] = ()
    includes_low_power: bool = False
    corrections: tuple[Correction, ...] = ()
    scale: TrainingScale | None = None
    lost_s: float = 0.0
    learns: bool = True
    time_left_s: Callable[[], float | None] = no_time_limit
    reporter: ProgressReporter = SILENT_REPORTER


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The training result, measurements and decision of one round.

    Attributes:
        trained: Arrays, loss and accuracy.
        decision: Decision that was carried out.
        measured: Measurement of the last part.
        probes: Measurements of the probes.
        mixed: Measurement of the part in the decision's second mode; None if there was none.
        predicted: Prediction for the mode of ``measured``.
        predictions: Predictions of every candidate from which the decision was made.
        own_samples: Number of the board's own measurements to which the predictions were fitted.
        shared_samples: Number of other boards' measurements to which they were fitted.
        recalled_samples: Number of the board's measurements of earlier runs to which they were fitted.
        contradicts_recalled: Whether there were such measurements and the board's own contradict them.
        front: Offer for the next round, including this round's measurements.
        step_budget_s: Seconds per step that the deadline allowed; None without a deadline.
    """

    trained: TrainResult
    decision: Decision
    measured: Measurement
    probes: tuple[Measurement, ...]
    mixed: Measurement | None
    predicted: Prediction
    predictions: Predictions
    own_samples: int
    shared_samples: int
    front: Front
    step_budget_s: float | None
    recalled_samples: int = 0
    contradicts_recalled: bool = False
