"""What figures are given per: an epoch, or 1,000 samples where the epochs that are compared are not of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.characterisation.settings import Setting
from fedge.characterisation.judging.estimate import Estimate

SAMPLES = 1000.0
ALIKE = 0.05
"""Epochs whose numbers of samples differ by less (relative) are of one size: the last minibatch may not be full."""
TOTALS = ("_s", "_j")
"""Ends of the names of what grows with an epoch; watts do not."""


@dataclass(frozen=True, slots=True)
class Basis:
    """``words`` are for titles and axes; ``whole`` says whether figures are an epoch's own."""

    whole: bool

    @property
    def words(self) -> str:
        return "epoch" if self.whole else f"{SAMPLES:,.0f} samples"

    @property
    def title(self) -> str:
        """After "time of"."""
        return "an epoch" if self.whole else self.words

    def amount(self, setting: Setting, field: str) -> Estimate | None:
        """A figure of the setting on this basis; None where nobody metered it."""
        found = setting.amount(field)
        if found is None or self.whole or not field.endswith(TOTALS):
            return found
        return found.times(SAMPLES / setting.stats.samples)

    def value(self, setting: Setting, field: str) -> float | None:
        """The mean alone."""
        found = self.amount(setting, field)
        return None if found is None else found.value


def basis_of(settings: Sequence[Setting]) -> Basis:
    """The epoch where a workload's are of about one size; not where they were cut after so many minibatches."""
    sizes: dict[str, list[float]] = {}
    for one in settings:
        sizes.setdefault(one.point.workload, []).append(one.stats.samples)
    return Basis(whole=all(max(own) <= (1.0 + ALIKE) * min(own) for own in sizes.values()))


def first_apart(settings: Sequence[Setting]) -> bool:
    """Whether there is more to the figures of an epoch than the first one, or they leave it out."""
    return any(one.stats.epochs != (0,) for one in settings)
