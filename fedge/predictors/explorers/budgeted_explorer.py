"""Wrapper that keeps an explorer within a profiling budget of seconds or joules.

Profiling a mode takes a few seconds until the power has settled, then 40 minibatches (PowerTrain, FGCS 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedge.modes import stack_modes
from fedge.protocols import Explorer
from fedge.types import Floats, Measurement, Modes, PowerMode

STEPS = 40
"""Steps per profiled mode (PowerTrain, section 4)."""
POWER_SETTLE_S = 3.0
"""Seconds until the power has settled in a new mode; PowerTrain waits 2 to 3 s."""
MIN_FURTHER_MODES = 10
"""Number of further modes of which at least one must fit the budget, or exploring ends. Default; a larger value
searches longer for an affordable mode."""


def compute_profiling_s(step_s: Floats, steps: int = STEPS, settle_s: float = POWER_SETTLE_S) -> Floats:
    """Return the time to profile each mode, in seconds, shape (n,).

    Args:
        step_s: Seconds per step, shape (n,).
        steps: Measured steps per mode.
        settle_s: Seconds until the power has settled.
    """
    seconds: Floats = settle_s + steps * step_s
    return seconds


def compute_profiling_j(
    step_s: Floats, power_w: Floats, steps: int = STEPS, settle_s: float = POWER_SETTLE_S
) -> Floats:
    """Return the energy to profile each mode, in joules, shape (n,).

    The board trains while its power settles, so this time is charged at the same power.

    Args:
        step_s: Seconds per step, shape (n,).
        power_w: Module power in watts, shape (n,).
        steps: Measured steps per mode.
        settle_s: Seconds until the power has settled.
    """
    joules: Floats = compute_profiling_s(step_s, steps, settle_s) * power_w
    return joules


class BudgetedExplorer:
    """A ``fedge.protocols.Explorer`` that proposes only modes of another explorer that fit a budget.

    A proposed mode reserves its expected cost. Its measurement is charged at ``charge``, or at the reserved cost.
    Measurements of modes that were not proposed here cost nothing. A mode that is too expensive is kept and proposed
    first if the remaining budget allows it later.
    """

    def __init__(
        self,
        explorer: Explorer,
        cost_of: Callable[[Modes], Floats],
        budget: float,
        charge: Callable[[Measurement], float] | None = None,
    ) -> None:
        """Wrap an explorer.

        Args:
            explorer: The explorer whose modes are proposed.
            cost_of: Expected cost of profiling each of n modes, shape (n,), in the budget's unit; evaluated anew each
                time, so that it may learn.
            budget: The budget in seconds or joules.
            charge: Actual cost of a measurement, in the budget's unit; None to charge the expected cost.
        """
        self.explorer, self.cost_of, self.budget, self.charge = explorer, cost_of, budget, charge
        self._spent = 0.0
        self._reserved: dict[PowerMode, float] = {}
        self._kept: list[PowerMode] = []

    @property
    def budget_left(self) -> float:
        """Return the part of the budget that is neither charged nor reserved."""
        return self.budget - self._spent - sum(self._reserved.values())

    def ask(self, count: int) -> Modes:
        """Propose modes whose costs fit the remaining budget.

        The wrapped explorer is asked for more until it has none left or only modes that are too expensive.

        Args:
            count: Largest number of modes.

        Returns:
            The modes; fewer than ``count`` if the budget or the candidates run out.
        """
        chosen, self._kept = self._reserve_affordable(self._kept, count)
        size, too_dear = count - len(chosen), 0
        while len(chosen) < count and (fresh := list(self.explorer.ask(size))):
            fitting, others = self._reserve_affordable(fresh, count - len(chosen))
            chosen, self._kept = chosen + fitting, self._kept + others
            too_dear = 0 if fitting else too_dear + len(fresh)
            if len(fresh) < size if fitting else too_dear >= MIN_FURTHER_MODES:
                break
            size = count - len(chosen) if fitting else max(count - len(chosen), MIN_FURTHER_MODES)
        return stack_modes(chosen)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Charge the proposed modes, and pass all measurements to the wrapped explorer."""
        told = {measurement.mode for measurement in measurements}
        for measurement in measurements:
            reserved = self._reserved.pop(measurement.mode, None)
            if reserved is not None:
                self._spent += reserved if self.charge is None else self.charge(measurement)
        self._kept = [mode for mode in self._kept if mode not in told]
        self.explorer.tell(measurements)

    def _reserve_affordable(self, modes: Sequence[PowerMode], count: int) -> tuple[list[PowerMode], list[PowerMode]]:
        """Reserve up to ``count`` of ``modes`` that fit the remaining budget, in order; return these and the others."""
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
