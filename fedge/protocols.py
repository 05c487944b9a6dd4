"""The seams of fedge: protocols of one to three methods, each with a trivial implementation and a contract test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, Self

from fedge.types import (
    ClientStatus,
    Decision,
    DeviceSpec,
    FleetPlan,
    Front,
    Measurement,
    Modes,
    NamedArrays,
    PowerMode,
    Predictions,
    RoundGoal,
    SelectionContext,
    SelectionResult,
    SensorSample,
    TrainOptions,
    TrainResult,
    Workload,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Clock(Protocol):
    """Seconds from an arbitrary start; never goes back."""

    def now_s(self) -> float: ...

    def sleep_s(self, seconds: float) -> None: ...


class Device(Protocol):
    """A board: it takes a power mode and meters work."""

    @property
    def spec(self) -> DeviceSpec: ...

    def idle_w(self, mode: PowerMode) -> float:
        """Watts while the board waits in ``mode``."""
        ...

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        """Set ``mode``; the mode found before is restored whatever happens inside."""
        ...

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        """Do ``steps`` minibatches of ``workload`` and meter them in the mode that is set.

        ``work(count)`` does the next ``count`` of them; it is called once or several times, one after the other. With
        ``limit_s``, only as many are done as fit in so many seconds, at least one.
        """
        ...


class PowerSensor(Protocol):
    """What a board says of itself: watts per rail, temperatures, clocks, loads."""

    @property
    def total_power(self) -> str:
        """The formula of the total from the rails, e.g. ``"VDD_IN"``; recorded with every energy."""
        ...

    def read(self) -> SensorSample:
        """One look, now. Raises ``SensorLost`` when the rails of the total cannot be read."""
        ...


class Predictor(Protocol):
    """Predicts every mode's step time and power like scikit-learn: ``fit`` returns self, what is learnt ends in _."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all of a board's measurements (none is allowed when there is a prior)."""
        ...

    def predict(self, modes: Modes) -> Predictions: ...


class Explorer(Protocol):
    """Says what to profile next, one mode at most once; made from the modes it may choose among and
    ``PriorKnowledge``.
    """

    def ask(self, count: int) -> Modes:
        """At most ``count`` modes that are worth measuring next, none of them told; fewer when no more are left."""
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """What was measured since."""
        ...


class Policy(Protocol):
    """Chooses the mode for a round; pure. ``offer`` is the board's own front for the goal's steps."""

    def __call__(self, predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision: ...


class Planner(Protocol):
    """Plans a round for the fleet; pure. ``goal`` holds the policy's numbers and is what every board gets, completed.

    A board without a front, or with one that makes no sense, gets the bare goal and is not planned for.
    """

    def __call__(self, fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan: ...


class Selector(Protocol):
    """Chooses a round's clients; pure: the same question and generator give the same answer, in any order."""

    def __call__(
        self, clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
    ) -> SelectionResult: ...


class Training(Protocol):
    """A board's share of a round, done in parts, so that the power mode may change between minibatches."""

    def advance(self, steps: int) -> None:
        """Do the next ``steps`` minibatches."""
        ...

    def result(self) -> TrainResult:
        """What all minibatches so far gave."""
        ...


class LearningTask(Protocol):
    """A model, its data and its loss; arrays are the model's parameters and buffers by name, in a fixed order."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The training samples' labels, shape (n,), for partitioning."""
        ...

    @property
    def buffers(self) -> Collection[str]:
        """The arrays that are statistics or counters, not learnt: averaged plainly, never moved by an optimiser."""
        ...

    def initial_arrays(self, seed: int) -> NamedArrays: ...

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> Training:
        """Begin training from ``arrays`` on the samples whose indices are ``share``; ``seed`` fixes the order."""
        ...

    def evaluate(self, arrays: NamedArrays) -> tuple[float, float]:
        """Mean loss and accuracy of the model on the task's held-out test set."""
        ...
