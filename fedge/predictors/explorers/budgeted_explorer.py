"""Keeps any explorer within a profiling budget of seconds or joules: it proposes only what the rest still allows.

The cost of profiling one mode (PowerTrain, FGCS 2024): a few seconds until the power has settled, then 40 minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedge.modes import stack_modes
from fedge.protocols import Explorer
from fedge.types import Floats, Measurement, Modes, PowerMode

STEPS = 40
"""Minibatches per profiled mode (PowerTrain, section 4)."""
POWER_SETTLE_S = 3.0
"""Seconds until the power has settled in a new mode; PowerTrain waits 2 to 3 s."""
MIN_FURTHER_MODES = 10
"""Of so many further modes one must fit into what is left, or no more are asked for. Chosen by us."""


def compute_profiling_s(step_s: Floats, steps: int = STEPS, settle_s: float = POWER_SETTLE_S) -> Floats:
    """Seconds to profile modes of ``step_s`` seconds per step, shape (n,): settling, then ``steps`` minibatches."""
    seconds: Floats = settle_s + steps * step_s
    return seconds


def compute_profiling_j(
    step_s: Floats, power_w: Floats, steps: int = STEPS, settle_s: float = POWER_SETTLE_S
) -> Floats:
    """Joules to profile modes, shape (n,); the board trains while its power settles, so that counts like the rest."""
    joules: Floats = compute_profiling_s(step_s, steps, settle_s) * power_w
    return joules


class BudgetedExplorer:
    """A ``fedge.protocols.Explorer`` around another one, within ``budget``.

    ``cost_of`` says what profiling each of some modes is expected to cost, shape (n,), in the unit of ``budget``; it is
    asked anew each time, so that it may learn. What was proposed is reserved at that cost; once told it is charged at
    ``charge`` of its measurement, or without ``charge`` at what was reserved. Measurements that were not proposed here
    cost nothing. A mode that is too dear is passed over and kept: it comes first should the rest come to allow it.
    """

    def __init__(
        self,
        explorer: Explorer,
        cost_of: Callable[[Modes], Floats],
        budget: float,
        charge: Callable[[Measurement], float] | None = None,
    ) -> None:
        self.explorer, self.cost_of, self.budget, self.charge = explorer, cost_of, budget, charge
        self._spent = 0.0
        self._reserved: dict[PowerMode, float] = {}
        self._kept: list[PowerMode] = []

    @property
    def budget_left(self) -> float:
        """What of the budget is neither charged nor reserved."""
        return self.budget - self._spent - sum(self._reserved.values())

    def ask(self, count: int) -> Modes:
        """At most ``count`` modes whose costs fit into what is left; fewer when the budget or the candidates run out.

        The wrapped explorer is asked for what is missing, until it has none or too dear ones only.
        """
        chosen, self._kept = self._reserve_affordable(self._kept, count)
        size = count - len(chosen)
        while len(chosen) < count and (fresh := list(self.explorer.ask(size))):
            fitting, others = self._reserve_affordable(fresh, count - len(chosen))
            chosen, self._kept = chosen + fitting, self._kept + others
            if not fitting and size >= MIN_FURTHER_MODES:
                break
            size = count - len(chosen) if fitting else max(count - len(chosen), MIN_FURTHER_MODES)
        return stack_modes(chosen)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Charge what was proposed, and pass everything on."""
        told = {measurement.mode for measurement in measurements}
        for measurement in measurements:
            reserved = self._reserved.pop(measurement.mode, None)
            if reserved is not None:
                self._spent += reserved if self.charge is None else self.charge(measurement)
        self._kept = [mode for mode in self._kept if mode not in told]
        self.explorer.tell(measurements)

    def _reserve_affordable(self, modes: Sequence[PowerMode], count: int) -> tuple[list[PowerMode], list[PowerMode]]:
        """Up to ``count`` of ``modes`` in their order, each reserved if it fits into what is left; and the others."""
        if not modes:
            return [], []
        fitting: list[PowerMode] = []
        others: list[PowerMode] = []
        for mode, cost in zip(modes, self.cost_of(stack_modes(modes)).tolist(), strict=True):
            if len(fitting) < count and cost <= self.budget_left:
                fitting.append(mode)
                self._reserved[mode] = cost
            else:
                others.append(mode)
        return fitting, others
