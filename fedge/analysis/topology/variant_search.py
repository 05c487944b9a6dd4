"""Finds the largest variants that fit a board's memory and time, over a network's width and the batch size; pure.

Widths are channel shares in steps; what a width costs and needs is asked for through two functions, as rarely as the
search allows: a few widths across the range, then halving between the last that is too large and the first that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedge.analysis.topology.network_variant import NetworkVariant
from fedge.errors import BadInput

COARSE_WIDTHS = 8
"""Widths that are looked at before halving begins. Chosen by us."""
WIDTH_STEP = 0.005
"""Of the channels, between two widths: a twentieth of the smallest. Chosen by us."""


class PredictedNeed(Protocol):
    """What a training step needs on a board: peak memory above idle, seconds at MAXN, each with its spread."""

    @property
    def memory_mb(self) -> float: ...
    @property
    def step_s(self) -> float: ...
    @property
    def memory_sd_log(self) -> float: ...
    @property
    def step_sd_log(self) -> float: ...
    @property
    def label(self) -> str: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a step may take; ``z`` standard deviations are kept between the prediction and a limit."""

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

    def memory_with_margin_mb(self, need: PredictedNeed) -> float:
        """The memory that must be there for the step to fit with the margin."""
        return need.memory_mb * math.exp(self.z * need.memory_sd_log)

    def step_with_margin_s(self, need: PredictedNeed) -> float:
        """The time that must be there for the step to fit with the margin."""
        return need.step_s * math.exp(self.z * need.step_sd_log)

    def is_met_by(self, need: PredictedNeed) -> bool:
        """Whether both limits hold."""
        memory = self.memory_mb is None or self.memory_with_margin_mb(need) <= self.memory_mb
        time = self.step_s is None or self.step_with_margin_s(need) <= self.step_s
        return memory and time


@dataclass(frozen=True, slots=True)
class VariantFit:
    """A variant at a batch size, and what a step of it needs."""

    variant: NetworkVariant
    batch_size: int
    need: PredictedNeed
    fits: bool

    @property
    def sample_s(self) -> float:
        """Seconds of a step per sample."""
        return self.need.step_s / self.batch_size


def list_channel_shares(least: float, step: float = WIDTH_STEP) -> tuple[float, ...]:
    """Channel shares from ``least`` to 1, both among them."""
    count = round((1.0 - least) / step)
    return (*(round(1.0 - step * i, 6) for i in range(count, 0, -1)), 1.0)


def find_largest_fitting(count: int, fits: Callable[[int], bool], coarse: int = COARSE_WIDTHS) -> int | None:
    """The largest of ``range(count)`` that fits, None when none does.

    Exact when whatever is below something that fits fits too. Otherwise what is returned fits, and none of the coarse
    steps above it does.
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
    """What is searched: widths (channel shares, ascending), and how a variant and its need are found."""

    shares: tuple[float, ...]
    variant_at: Callable[[float], NetworkVariant]
    need_of: Callable[[NetworkVariant, int], PredictedNeed]
    limits: StepLimits

    def evaluate(self, index: int, batch_size: int) -> VariantFit:
        """The variant of a width at a batch size."""
        variant = self.variant_at(self.shares[index])
        need = self.need_of(variant, batch_size)
        return VariantFit(variant, batch_size, need, self.limits.is_met_by(need))

    def find_largest(self, batch_size: int) -> VariantFit | None:
        """The largest variant that fits at a batch size; None when not even the smallest does."""
        index = find_largest_fitting(len(self.shares), lambda i: self.evaluate(i, batch_size).fits)
        return None if index is None else self.evaluate(index, batch_size)

    def evaluate_smallest(self, batch_size: int) -> VariantFit:
        """The smallest variant there is, whether it fits or not."""
        return self.evaluate(0, batch_size)

    def list_smaller(self, found: VariantFit, count: int) -> tuple[VariantFit, ...]:
        """``found`` and smaller variants that fit, evenly over the channels; ``count`` at most, the largest first.

        Neighbouring widths may be the same network, where layers are narrow or rounded; it is named once.
        """
        top = self.shares.index(found.variant.channel_share)
        rows = sorted({round(top * (1 - i / count)) for i in range(count)}, reverse=True)
        every = [one for row in rows if (one := self.evaluate(row, found.batch_size)).fits]
        return tuple(one for i, one in enumerate(every) if not i or one.variant.plan != every[i - 1].variant.plan)

    def sample_widths(self, batch_size: int, count: int) -> tuple[VariantFit, ...]:
        """Widths across the whole range, the smallest first, whether they fit or not."""
        rows = sorted({round(i * (len(self.shares) - 1) / (count - 1)) for i in range(count)})
        return tuple(self.evaluate(row, batch_size) for row in rows)

    def find_largest_per_batch_size(self, batch_sizes: Sequence[int]) -> tuple[VariantFit, ...]:
        """For every batch size the largest variant that fits; batch sizes at which none does are left out."""
        return tuple(one for size in batch_sizes if (one := self.find_largest(size)) is not None)


def compute_variant_front(found: Sequence[VariantFit]) -> tuple[VariantFit, ...]:
    """Those that fit and that no other one beats: as large, at as large a batch size, as quick per sample, and better.

    What is kept of the parameters stands for what the network can learn.
    """
    fitting = [one for one in found if one.fits]
    return tuple(one for one in fitting if not any(_dominates(other, one) for other in fitting))


def _dominates(other: VariantFit, one: VariantFit) -> bool:
    a = (other.variant.parameter_share, other.batch_size, -other.sample_s)
    b = (one.variant.parameter_share, one.batch_size, -one.sample_s)
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))
