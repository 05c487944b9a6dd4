"""The model of progress: what a client's part in a round is worth, and what the rounds' losses show of it. Pure.

Symbols: L_r the loss of the model after round r, V_r the progress of the round, kappa the rate of learning; client i
has the weight w_i (sum 1 over the clients offered), ran the share phi_i of the steps of its whole share, and sent a
part q_i of what it learnt.

    log L_(r-1) / L_r = kappa V_r,    V_r = sum_i w_i h(phi_i) q_i,    h(phi) = phi / (A + (1 - A - C) phi + C phi^2)

So V = 1 if every client does its whole share, and 1 / h is the number of rounds that phi of the steps take. A is the
part of the rounds that more steps make superfluous: with A = 1 half the steps take twice the rounds, with A = 0 as
many. C is drift: unlike (non-IID) shares pull the clients apart as their steps grow, so that more than sqrt(A / C) of
the steps take more rounds. A / phi + C phi is the form of the bound of Luo et al.; the constant between them is ours.

A and C are a pair of ``PAIRS``. For each the best kappa and its squared errors follow from three sums over the rounds,
and the pair of most posterior probability is used: errors of one unknown variance, with a prior on A and C. Before the
rounds differ in phi, the prior decides.

References:
    Luo et al. 2021: Cost-Effective Federated Learning Design, arXiv 2012.08336 (rounds over local steps).
    Yin et al. 2018: Gradient Diversity, arXiv 1706.05699 (why unlike shares need more, smaller rounds).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

PAIRS = tuple((a, c) for a in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0) for c in (0.0, 0.05, 0.1, 0.2) if a + c <= 1.0)
"""Values of A and C; the prior is centred on the first of ``PRIOR``."""
PRIOR = (0.5, 0.05)
"""A and C before any round: half the steps take one and a half times the rounds, as the digits do in
benchmarks/local_steps.py."""
PRIOR_SD = (1.0, 0.1)
"""Spread of log A and of C. Default: wide enough that noise-free rounds of unlike shares outweigh the prior."""
LEAST_LOSS = 1e-9


@dataclass(frozen=True, slots=True)
class ProgressFit:
    """Sums over the rounds so far, from which A, C and kappa follow.

    Attributes:
        rounds: Number of rounds whose loss before and after is known.
        loss: Loss of the newest model; None before the first.
        falls: Sum of squared falls of log loss.
        products: Per pair, the sum of fall times V.
        squares: Per pair, the sum of V squared.
    """

    rounds: int = 0
    loss: float | None = None
    falls: float = 0.0
    products: tuple[float, ...] = (0.0,) * len(PAIRS)
    squares: tuple[float, ...] = (0.0,) * len(PAIRS)


NO_ROUNDS = ProgressFit()
"""The fit before the first round."""


@dataclass(frozen=True, slots=True)
class RoundShare:
    """A client's part in a finished round: its weight w, the share phi of its steps and the part q that it sent."""

    weight: float
    share: float
    sent: float = 1.0


def step_worth(share: float, pair: tuple[float, float]) -> float:
    """Return h of a share of the local steps with A and C; 0 for none."""
    a, c = pair
    return 0.0 if share <= 0.0 else share / (a + (1.0 - a - c) * share + c * share * share)


def update_fit(fit: ProgressFit, parts: Sequence[RoundShare], loss: float | None) -> ProgressFit:
    """Return the fit after a round with these parts, whose model has the loss ``loss``; None if that is unknown."""
    if loss is None or not math.isfinite(loss):
        return fit
    loss = max(loss, LEAST_LOSS)
    if fit.loss is None or not parts:
        return dataclasses.replace(fit, loss=loss)
    fall = math.log(fit.loss / loss)
    made = [sum(part.weight * step_worth(part.share, pair) * part.sent for part in parts) for pair in PAIRS]
    return ProgressFit(
        fit.rounds + 1,
        loss,
        falls=fit.falls + fall * fall,
        products=tuple(total + fall * v for total, v in zip(fit.products, made, strict=True)),
        squares=tuple(total + v * v for total, v in zip(fit.squares, made, strict=True)),
    )


def find_pair(fit: ProgressFit) -> tuple[float, float]:
    """Return A and C of most posterior probability."""
    scores = [
        _log_prior(pair) - 0.5 * fit.rounds * math.log(max(_squared_error(fit, i), LEAST_LOSS))
        for i, pair in enumerate(PAIRS)
    ]
    return PAIRS[scores.index(max(scores))]


def _squared_error(fit: ProgressFit, i: int) -> float:
    """Return the share of the squared falls that the pair leaves unexplained with its best kappa, which is positive."""
    if fit.falls <= 0.0 or fit.squares[i] <= 0.0:
        return 1.0
    return 1.0 - max(0.0, fit.products[i]) ** 2 / (fit.squares[i] * fit.falls)


def _log_prior(pair: tuple[float, float]) -> float:
    (a, c), (mean_a, mean_c) = pair, PRIOR
    return -0.5 * ((math.log(a / mean_a) / PRIOR_SD[0]) ** 2 + ((c - mean_c) / PRIOR_SD[1]) ** 2)
