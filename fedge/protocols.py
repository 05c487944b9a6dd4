"""The interfaces of fedge: protocols of one to three methods, each with a contract test."""

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
    """A source of seconds from an arbitrary start that never goes back."""

    def now_s(self) -> float: ...

    def sleep_s(self, seconds: float) -> None: ...


class Device(Protocol):
    """A board that can set a power mode and measure work."""

    @property
    def spec(self) -> DeviceSpec: ...

    def idle_w(self, mode: PowerMode) -> float:
        """Return the power in watts while the board waits in ``mode``."""
        ...

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        """Set ``mode`` within a context and restore the previous mode on exit, also after an error."""
        ...

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        """Run up to ``steps`` steps of ``workload`` and measure them in the current mode.

        Args:
            workload: The kind of step, which emulated boards need for its cost.
            steps: Number of steps, at least 1.
            work: Runs the next ``count`` steps; called once or several times in sequence.
            limit_s: Run only as many steps as fit in this many seconds, but at least one; None for no limit.

        Returns:
            Mean step time and power of the steps that were run.
        """
        ...


class PowerSensor(Protocol):
    """A board's sensors: power per rail, temperatures, clocks and loads."""

    @property
    def total_power(self) -> str:
        """Formula of the total power from the rails, e.g. ``"VDD_IN"``; recorded with every energy."""
        ...

    def read(self) -> SensorSample:
        """Read all sensors once.

        Raises:
            SensorLost: If a rail of the total power cannot be read.
        """
        ...


class Predictor(Protocol):
    """Predicts step time and power of modes; like in scikit-learn, ``fit`` returns self and fitted names end in
    ``_``.
    """

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit to all measurements of a board, replacing earlier fits; the sequence may be empty if there is a prior."""
        ...

    def predict(self, modes: Modes) -> Predictions: ...


class Explorer(Protocol):
    """Proposes modes to measure, each at most once; constructed from the candidate modes and ``PriorKnowledge``."""

    def ask(self, count: int) -> Modes:
        """Return at most ``count`` unmeasured modes that are worth measuring next.

        They are fewer if the explorer would learn from these first, and none if none is left.
        """
        ...

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Add new measurements."""
        ...


class Policy(Protocol):
    """Chooses a client's mode for a round from its predictions and its front for the goal's steps; a pure function."""

    def __call__(self, predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision: ...


class Planner(Protocol):
    """Plans a round for the fleet; a pure function.

    ``goal`` holds the policy's numbers; every client's goal is derived from it. A client without a front, or with an
    invalid one, gets ``goal`` unchanged and is left out of the plan.
    """

    def __call__(self, fronts: Mapping[str, Front], boards: Sequence[str], goal: RoundGoal) -> FleetPlan: ...


class Selector(Protocol):
    """Selects a round's clients; a pure function whose result depends neither on call order nor on earlier calls."""

    def __call__(
        self, clients: Sequence[ClientStatus], call: SelectionContext, rng: np.random.Generator
    ) -> SelectionResult: ...


class Training(Protocol):
    """A client's share of a round, trained in parts so that the power mode can change between steps."""

    def advance(self, steps: int) -> None:
        """Run the next ``steps`` steps."""
        ...

    def result(self) -> TrainResult:
        """Return the arrays, loss and accuracy after all steps so far."""
        ...


class LearningTask(Protocol):
    """A model with its data and loss; arrays are the model's parameters and buffers by name, in a fixed order."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels of the training samples, shape (n,), for partitioning."""
        ...

    @property
    def buffers(self) -> Collection[str]:
        """Names of arrays that are statistics or counters: they are averaged, but not changed by a server optimiser."""
        ...

    def initial_arrays(self, seed: int) -> NamedArrays: ...

    def start(self, arrays: NamedArrays, share: NDArray[np.int64], seed: int, options: TrainOptions) -> Training:
        """Begin training.

        ``share`` holds the indices of the client's training samples, shape (m,). For a width below 1, the arrays are
        the model's leading part of that width or of a wider one.
        """
        ...

    def evaluate(self, arrays: NamedArrays, share: NDArray[np.int64] | None = None) -> tuple[float, float] | None:
        """Return the mean loss and the accuracy (0 to 1) of the model on the held-out test set; None without one.

        A ``share``, indices of test samples, is given only if the task has ``test_labels``, which are like ``labels``.
        """
        ...
