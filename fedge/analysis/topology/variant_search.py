"""Search the largest variants that fit a board's memory and time, over a network's width and the batch size.

Widths are channel shares in steps. Costs and needs of a width come from two functions, called as rarely as possible: a
few widths across the range, then bisection between the last that is too large and the first that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.costs.memory.step_need import StepNeed
from fedge.errors import BadInput

COARSE_WIDTHS = 8
"""Default number of widths that are tried before bisection: more find fits that are not monotone in the width."""
WIDTH_STEP = 0.005
"""Default step between two widths, as a share of the channels: a twentieth of the smallest width."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a training step; ``z`` standard deviations are kept between a prediction and its limit.

    Attributes:
        memory_mb: Peak memory above idle in MB; None for no limit.
        step_s: Seconds of a step; None for no limit.
        z: Margin in standard deviations.
    """

    memory_mb: float | None = None
    step_s: float | None = None
    z: float = 0.0

    def __post_init__(self) -> None:
        for option, value, unit in (
            ("--max-memory-mb", self.memory_mb, "megabytes"),
            ("--max-step-s", self.step_s, "seconds"),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInput(option, f"{value:g}", f"{unit}, above 0")

    def memory_with_margin_mb(self, need: StepNeed) -> float:
        """Return the memory in MB that a step needs with the margin."""
        return need.memory_mb * math.exp(self.z * need.memory_sd_log)

    def step_with_margin_s(self, need: StepNeed) -> float:
        """Return the seconds that a step needs with the margin."""
        return need.step_s * math.exp(self.z * need.step_sd_log)

    def is_met_by(self, need: StepNeed) -> bool:
        """Return whether both limits hold."""
        memory = self.memory_mb is None or self.memory_with_margin_mb(need) <= self.memory_mb
        time = self.step_s is None or self.step_with_margin_s(need) <= self.step_s
        return memory and time


@dataclass(frozen=True, slots=True)
class VariantFit:
    """A variant at a batch size, and the need of one of its training steps."""

    variant: NetworkVariant
    batch_size: int
    need: StepNeed
    fits: bool

    @property
    def sample_s(self) -> float:
        """Seconds of a step per sample."""
        return self.need.step_s / self.batch_size


def list_channel_shares(least: float) -> tuple[float, ...]:
    """Return channel shares from ``least`` to 1, both included."""
    count = round((1.0 - least) / WIDTH_STEP)
    return (*(round(1.0 - WIDTH_STEP * i, 6) for i in range(count, 0, -1)), 1.0)


def find_largest_fitting(count: int, fits: Callable[[int], bool], coarse: int = COARSE_WIDTHS) -> int | None:
    """Return the largest of ``range(count)`` that fits, or None if none does.

    Exact if everything below a fitting number fits too. Otherwise the result fits, and none of the coarse steps above
    it does.

    Args:
        count: Size of the range.
        fits: Tests one number.
        coarse: Number of steps tried before bisection.
    """
    last = count - 1
    steps = sorted({round(i * last / coarse) for i in range(coarse + 1)}, reverse=True)
    low = next((i for i in steps if fits(i)), None)
    if low is None or low == last:
        return low
    high = min(i for i in steps if i > low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class VariantSearch:
    """A search: widths (channel shares, ascending), and functions for a variant and its need."""

    shares: tuple[float, ...]
    variant_at: Callable[[float], NetworkVariant]
    need_of: Callable[[NetworkVariant, int], StepNeed]
    limits: StepLimits

    def evaluate(self, index: int, batch_size: int) -> VariantFit:
        """Return the variant of a width at a batch size."""
        variant = self.variant_at(self.shares[index])
        need = self.need_of(variant, batch_size)
        return VariantFit(variant, batch_size, need, self.limits.is_met_by(need))

    def find_largest(self, batch_size: int) -> VariantFit | None:
        """Return the largest variant that fits at a batch size, or None if not even the smallest does."""
        index = find_largest_fitting(len(self.shares), lambda i: self.evaluate(i, batch_size).fits)
        return None if index is None else self.evaluate(index, batch_size)

    def list_smaller(self, found: VariantFit, count: int) -> tuple[VariantFit, ...]:
        """Return ``found`` and smaller variants that fit, evenly over the channels, the largest first.

        At most ``count`` are returned. Neighbouring widths may give the same network if layers are narrow or rounded;
        it is listed once.
        """
        top = self.shares.index(found.variant.channel_share)
        rows = sorted({round(top * (1 - i / count)) for i in range(count)}, reverse=True)
        every = [one for row in rows if (one := self.evaluate(row, found.batch_size)).fits]
        return tuple(one for i, one in enumerate(every) if not i or one.variant.plan != every[i - 1].variant.plan)

    def sample_widths(self, batch_size: int, count: int) -> tuple[VariantFit, ...]:
        """Return variants across the whole range of widths, the smallest first, whether they fit or not."""
        rows = sorted({round(i * (len(self.shares) - 1) / (count - 1)) for i in range(count)})
        return tuple(self.evaluate(row, batch_size) for row in rows)

    def find_largest_per_batch_size(self, batch_sizes: Sequence[int]) -> tuple[VariantFit, ...]:
        """Return the largest variant that fits for every batch size; batch sizes without one are left out."""
        return tuple(one for size in batch_sizes if (one := self.find_largest(size)) is not None)


def compute_variant_front(found: Sequence[VariantFit]) -> tuple[VariantFit, ...]:
    """Return the fitting variants that no other dominates in parameters, batch size and time per sample.

    The share of the parameters stands for what the network can learn.
    """
    fitting = [one for one in found if one.fits]
    return tuple(one for one in fitting if not any(_dominates(other, one) for other in fitting))


def _dominates(other: VariantFit, one: VariantFit) -> bool:
    a = (other.variant.parameter_share, other.batch_size, -other.sample_s)
    b = (one.variant.parameter_share, one.batch_size, -one.sample_s)
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))
