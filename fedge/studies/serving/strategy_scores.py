"""Figures of a strategy on a pair's problems of one family, summarised from the score of every problem."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fedge.serving.serving_problems import ProblemFamily

PERCENT = 100.0
POWER_TOLERANCE_W = 1.0
LATENCY_TOLERANCE = 0.01
"""An answer violates a limit if it exceeds power by more than the first, or latency by more than this share."""


@dataclass(frozen=True, slots=True)
class OptimalityGap:
    """Distance of a solved problem's answer from the best one, as shares; nan if not applicable.

    Attributes:
        loss: Loss of training steps.
        rate_loss: Loss of training steps per second.
        excess: Excess of the inference time.
    """

    loss: float = math.nan
    rate_loss: float = math.nan
    excess: float = math.nan


@dataclass(frozen=True, slots=True)
class LimitBreach:
    """By how much an answer exceeds its limits; 0 if it keeps them.

    Attributes:
        over_w: Excess of power in watts.
        over: Excess of power as a share of the limit.
        late: Share by which the latency budget, or the service rate, is exceeded.
        keeps_up: Whether the queue stays bounded.
    """

    over_w: float = 0.0
    over: float = 0.0
    late: float = 0.0
    keeps_up: bool = True

    @property
    def is_late(self) -> bool:
        """Whether latency is exceeded by more than ``LATENCY_TOLERANCE``, or the queue grows without bound."""
        return self.late > LATENCY_TOLERANCE or not self.keeps_up

    @property
    def is_violation(self) -> bool:
        """Whether a limit is exceeded by more than its tolerance."""
        return self.over_w > POWER_TOLERANCE_W or self.is_late


@dataclass(frozen=True, slots=True)
class ProblemScore:
    """One problem's answer compared with the best one; ``gap`` of solved problems only, ``breach`` of any answer.

    ``tried`` counts trials, ``power_modes`` the power modes among them, whatever the batch size.
    """

    solvable: bool
    answered: bool
    tried: int
    power_modes: int = 0
    solved: bool = False
    gap: OptimalityGap = OptimalityGap()
    breach: LimitBreach = LimitBreach()


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """A strategy's figures on one pair and family. Losses, excesses, shares and violations are in percent.

    ``solvable``, ``solved``, ``problems`` and ``answers`` count problems, ``modes_*`` trials: a mode, for inference at
    one batch size; ``power_modes_total`` counts a mode once, whatever the batch sizes. ``modes_mean`` is over the
    solvable problems, as in Fulcrum, and with reuse over all, because any problem may pay for the next.
    ``modes_left_out`` counts modes with an implausible row, if those were excluded. ``seconds`` are those of the clock
    given to the run. ``error`` says why there are no figures. None means not applicable.
    """

    strategy: str
    pair: str
    solvable: int | None = None
    solved: int | None = None
    violations: float | None = None
    """Share of the answers that violate a limit by more than its tolerance, or do not keep up."""
    loss_mean: float | None = None
    loss_median: float | None = None
    excess_mean: float | None = None
    modes_mean: float | None = None
    modes_max: int | None = None
    family: ProblemFamily = "concurrent"
    problems: int = 0
    solved_share: float | None = None
    excess_median: float | None = None
    steps_per_s_loss_mean: float | None = None
    answers: int | None = None
    power_over_1w: float | None = None
    latency_over_1pct: float | None = None
    worst_over: float | None = None
    modes_mean_all: float | None = None
    modes_total: int | None = None
    power_modes_total: int | None = None
    modes_left_out: int | None = None
    seconds: float | None = None
    seed: int = 0
    reuse: bool = False
    device: str = ""
    train: str | None = None
    infer: str | None = None
    priors: tuple[str, ...] = ()
    error: str | None = None


def summarize_scores(blank: StrategyRow, accounts: Sequence[ProblemScore], seconds: float) -> StrategyRow:
    """Return the row of these scores, one per problem, in the order in which they were run."""
    solvable = [account for account in accounts if account.solvable]
    answers = [account for account in accounts if account.answered]
    solved = sum(account.solved for account in solvable)
    trains, infers = blank.family != "infer", blank.family != "train"
    losses = _drop_nan(account.gap.loss for account in solvable if trains)
    rate_losses = _drop_nan(account.gap.rate_loss for account in solvable if trains)
    excesses = _drop_nan(account.gap.excess for account in solvable if infers)
    tried = [account.tried for account in accounts]
    return replace(
        blank,
        solvable=len(solvable),
        solved=solved,
        violations=_share_percent([account.breach.is_violation for account in answers]),
        loss_mean=_average_percent(statistics.fmean, losses),
        loss_median=_average_percent(statistics.median, losses),
        excess_mean=_average_percent(statistics.fmean, excesses),
        excess_median=_average_percent(statistics.median, excesses),
        steps_per_s_loss_mean=_average_percent(statistics.fmean, rate_losses),
        modes_mean=_mean([account.tried for account in (accounts if blank.reuse else solvable)]),
        modes_mean_all=_mean(tried),
        modes_max=max(tried, default=None),
        modes_total=sum(tried),
        power_modes_total=sum(account.power_modes for account in accounts),
        problems=len(accounts),
        solved_share=PERCENT * solved / len(solvable) if solvable else None,
        answers=len(answers),
        power_over_1w=_share_percent([account.breach.over_w > POWER_TOLERANCE_W for account in answers]),
        latency_over_1pct=_share_percent([account.breach.is_late for account in answers]),
        worst_over=PERCENT * max((max(a.breach.over, a.breach.late) for a in answers), default=0.0),
        seconds=seconds,
    )


def _drop_nan(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _average_percent(average: Callable[[list[float]], float], values: list[float]) -> float | None:
    return PERCENT * float(average(values)) if values else None


def _mean(counts: Sequence[int]) -> float | None:
    return statistics.fmean(counts) if counts else None


def _share_percent(marks: Sequence[bool]) -> float:
    return PERCENT * sum(marks) / len(marks) if marks else 0.0
