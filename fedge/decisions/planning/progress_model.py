"""The model of progress: what a client's part in a round is worth, and what the rounds' losses show of it. Pure.

Symbols: L_r the loss of the model after round r, V_r the progress of the round, kappa the rate of learning; client i
has the weight w_i (sum 1 over the clients offered), ran the share phi_i of the steps of its whole share, sent a part
q_i of what it learnt, and trained the share s_i of its network's channels.

    log L_(r-1) / L_r = kappa V_r,    V_r = sum_i w_i h(phi_i) q_i s_i^G,
    h(phi) = phi / (A + (1 - A - C) phi + C phi^2)

So V = 1 if every client does its whole share, and 1 / h is the number of rounds that phi of the steps take. A is the
part of the rounds that more steps make superfluous: with A = 1 half the steps take twice the rounds, with A = 0 as
many. C is drift: unlike (non-IID) shares pull the clients apart as their steps grow, so that more than sqrt(A / C) of
the steps take more rounds. A / phi + C phi is the form of the bound of Luo et al.; the constant between them is ours.
G is what narrow networks lose: with G = 0 nothing; with G = 2 such a client is worth the share s^2 of the parameters
that it covers, each of which is averaged over those that hold it; with a large G, as little as one that rests.

A, C and G are one of ``SHAPES``. For each the best kappa and its squared errors follow from three sums over the rounds.
Used are their means over the posterior: errors of one unknown variance, with priors on it and on A, C and G. The most
probable shape would be a worse guess than the prior alone, as long as the rounds are few and their losses noisy.

References:
    Luo et al. 2021: Cost-Effective Federated Learning Design, arXiv 2012.08336 (rounds over local steps).
    Diao, Ding, Tarokh: HeteroFL, arXiv 2010.01264 (narrow networks; the power of s is ours).
    Yin et al. 2018: Gradient Diversity, arXiv 1706.05699 (why unlike shares need more, smaller rounds).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgressShape:
    """The shape of the model: use of more steps A, drift C, and loss by narrow networks G."""

    steps_use: float
    drift: float
    narrow_loss: float


SHAPES = tuple(
    ProgressShape(a, c, g)
    for a in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
    for c in (0.0, 0.05, 0.1, 0.2)
    if a + c <= 1.0
    for g in (0.2, 0.4, 0.75, 1.5, 3.0)
)
"""Values of A, C and G."""
PRIOR = ProgressShape(0.65, 0.05, 0.75)
"""Most probable A, C and G before any round. Their means over ``SHAPES`` are 0.5, 0.05 and 0.75, as the digits have
them in benchmarks/local_steps.py: half the steps take one and a half times the rounds, and a client that trains half of
the channels is worth 0.6 of a whole one in the first rounds."""
PRIOR_SD = ProgressShape(0.7, 0.07, 0.7)
"""Spread of log A, of C and of log G. Default: wide enough that noise-free rounds of unlike parts outweigh the prior.
"""
PRIOR_ROUNDS, PRIOR_ERROR = 2, 0.1
"""Rounds that the prior on the variance counts as, and the share of the squared falls that they leave unexplained.
Defaults: without them some shape explains the falls of two rounds by chance. In the quickstart 0.4 stays so."""
LEAST_LOSS = 1e-9


@dataclass(frozen=True, slots=True)
class ProgressFit:
    """Sums over the rounds so far, from which the shape and kappa follow.

    Attributes:
        rounds: Number of rounds whose loss before and after is known.
        loss: Loss of the newest model; None before the first.
        falls: Sum of squared falls of log loss.
        products: Per shape, the sum of fall times V.
        squares: Per shape, the sum of V squared.
    """

    rounds: int = 0
    loss: float | None = None
    falls: float = 0.0
    products: tuple[float, ...] = (0.0,) * len(SHAPES)
    squares: tuple[float, ...] = (0.0,) * len(SHAPES)


NO_ROUNDS = ProgressFit()
"""The fit before the first round."""


@dataclass(frozen=True, slots=True)
class RoundShare:
    """A client's part in a finished round.

    Attributes:
        weight: Its weight w.
        share: Share phi of its steps.
        sent: Part q of its update that arrived.
        width: Share s of its network's channels that it trained.
    """

    weight: float
    share: float
    sent: float = 1.0
    width: float = 1.0


def step_worth(share: float, shape: ProgressShape) -> float:
    """Return h of a share of the local steps; 0 for none."""
    a, c = shape.steps_use, shape.drift
    return 0.0 if share <= 0.0 else share / (a + (1.0 - a - c) * share + c * share * share)


def width_worth(width: float, shape: ProgressShape) -> float:
    """Return the worth of an update of a share of the channels, relative to that of all of them."""
    return float(width**shape.narrow_loss)


def update_fit(fit: ProgressFit, parts: Sequence[RoundShare], loss: float | None) -> ProgressFit:
    """Return the fit after a round with these parts, whose model has the loss ``loss``; None if that is unknown."""
    if loss is None or not math.isfinite(loss):
        return fit
    loss = max(loss, LEAST_LOSS)
    if fit.loss is None or not parts:
        return dataclasses.replace(fit, loss=loss)
    fall = math.log(fit.loss / loss)
    made = [
        sum(part.weight * step_worth(part.share, shape) * part.sent * width_worth(part.width, shape) for part in parts)
        for shape in SHAPES
    ]
    return ProgressFit(
        fit.rounds + 1,
        loss,
        falls=fit.falls + fall * fall,
        products=tuple(total + fall * v for total, v in zip(fit.products, made, strict=True)),
        squares=tuple(total + v * v for total, v in zip(fit.squares, made, strict=True)),
    )


def find_shape(fit: ProgressFit) -> ProgressShape:
    """Return the posterior mean of the shape, of A and G in logarithms."""
    rounds, error = fit.rounds + PRIOR_ROUNDS, PRIOR_ROUNDS * PRIOR_ERROR
    scores = [
        _log_prior(shape) - 0.5 * rounds * math.log(fit.rounds * _squared_error(fit, i) + error)
        for i, shape in enumerate(SHAPES)
    ]
    best = max(scores)
    odds = [math.exp(score - best) for score in scores]

    def average(values: Iterable[float]) -> float:
        return sum(odd * value for odd, value in zip(odds, values, strict=True)) / sum(odds)

    return ProgressShape(
        math.exp(average(math.log(shape.steps_use) for shape in SHAPES)),
        average(shape.drift for shape in SHAPES),
        math.exp(average(math.log(shape.narrow_loss) for shape in SHAPES)),
    )


def _squared_error(fit: ProgressFit, i: int) -> float:
    """Return the share of the squared falls that a shape leaves unexplained with its best kappa, which is positive."""
    if fit.falls <= 0.0 or fit.squares[i] <= 0.0:
        return 1.0
    return 1.0 - max(0.0, fit.products[i]) ** 2 / (fit.squares[i] * fit.falls)


def _log_prior(shape: ProgressShape) -> float:
    steps_use = math.log(shape.steps_use / PRIOR.steps_use) / PRIOR_SD.steps_use
    drift = (shape.drift - PRIOR.drift) / PRIOR_SD.drift
    narrow_loss = math.log(shape.narrow_loss / PRIOR.narrow_loss) / PRIOR_SD.narrow_loss
    return -0.5 * (steps_use**2 + drift**2 + narrow_loss**2)
