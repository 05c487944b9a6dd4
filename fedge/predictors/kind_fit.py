"""Fit of what other boards of a kind measured, made once for all boards that receive the same measurements.

A board that receives many measurements of its kind adds its own by one Gaussian update, at the curves that fit those
of the others best (``fedge.physics.posterior_update``): its own few measurements hardly move the parameters of curves
that many others determine. So boards that receive the same share the fit and its predictions of thousands of modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import QuantityRows, misfit_correlation
from fedge.physics.model_fit import KIND_CORRELATION, PooledMeasurements, pool_measurements
from fedge.physics.posterior_update import OwnRows, SharedPosterior, TabulatedModes
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import Coefficients, KnobTable
from fedge.predictors.candidate_blend import (
    MIN_RELATIVE_WEIGHT,
    BoardFit,
    CandidateBlend,
    PooledFit,
    PriorGroups,
    QuantityPrediction,
    fit_pooled_boards,
    group_priors,
    weigh_logs,
)
from fedge.types import Floats, Measurement, PowerMode, ProfileTable

MIN_PEER_ROWS = 16
"""Measurements of other boards from which on a board's own are added to their fit. Default; with fewer, the curves that
fit them best may be far from those that fit all. ``tests/fedge/predictors/test_blended_predictor.py`` compares the
errors of both ways on synthetic boards.
"""
MIN_PEER_RATIO = 2
"""The same, as a multiple of the board's own measurements. Default; a board with many of its own needs no others."""


def split_by_board(measurements: Sequence[Measurement]) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """Return the board's own measurements and those of other boards."""
    own = tuple(measurement for measurement in measurements if measurement.board is None)
    return own, tuple(measurement for measurement in measurements if measurement.board is not None)


def has_enough_peers(own: Sequence[Measurement], peers: Sequence[Measurement]) -> bool:
    """Return whether the peers' measurements alone determine the curves that the board's own are added to."""
    return len(peers) >= max(MIN_PEER_ROWS, MIN_PEER_RATIO * len({measurement.mode for measurement in own}))


class KindFit:
    """The fit of what boards receive of others of their kind.

    Args:
        fit: The fit to the measurements.
    """

    def __init__(self, fit: PooledFit) -> None:
        self.time, self.power = (_KindBlend(blend) for blend in (fit.time, fit.power))
        self.modes = self.time.posteriors[0].x
        """The modes that were measured, as shares of the top mode, shape (u, 4)."""

    def correlate(self, x: Floats) -> Float32Array:
        """Return the correlation of a board's misfits in o modes with those of the kind in ``modes``, shape (o, u)."""
        return misfit_correlation(x, self.modes) * np.float32(KIND_CORRELATION)

    def update(self, boards: Sequence[PooledMeasurements]) -> list[UpdatedFit]:
        """Return the fits of boards with their own measurements."""
        counts = np.cumsum([len(own.time.log) for own in boards])[:-1]
        alike = np.split(self.correlate(np.concatenate([own.time.x for own in boards])), counts)
        within = [own.correlation for own in boards]

        def update_blend(kind: _KindBlend, rows: Sequence[QuantityRows]) -> list[UpdatedBlend]:
            by_curve = [one.add_rows(rows, within, alike) for one in kind.posteriors]
            return [UpdatedBlend(kind, own) for own in zip(*by_curve, strict=True)]

        times = update_blend(self.time, [own.time for own in boards])
        powers = update_blend(self.power, [own.power for own in boards])
        return [
            UpdatedFit(self, own.time.x, time, power) for own, time, power in zip(boards, times, powers, strict=True)
        ]


@lru_cache(maxsize=32)
def _tabulate(kind: KindFit, x: KnobTable) -> tuple[list[TabulatedModes], list[TabulatedModes]]:
    """Tabulate a kind's candidates.

    A table holds 4 MB. A fleet of four kinds has 16 groups that receive the same, and some boards more that receive
    others: with 16 tables kept, most were made again in every round.
    """
    near = _stack_correlations(x, kind.modes) * np.float32(KIND_CORRELATION)
    time, power = ([one.tabulate(x, near) for one in blend.posteriors] for blend in (kind.time, kind.power))
    return time, power


class _KindBlend:
    """The candidates of one quantity that the kind's measurements leave.

    Attributes:
        posteriors: The candidates by their curve.
        log_weights: Logarithms of their probabilities.
    """

    def __init__(self, blend: CandidateBlend) -> None:
        self.posteriors = [SharedPosterior(group.posterior, group.curve) for group in blend.groups]
        self.log_weights: Floats = np.log(np.concatenate([group.weights for group in blend.groups]))


class UpdatedBlend:
    """The candidates of one quantity after the board's own rows.

    Args:
        kind: The candidates before.
        own: The board's own rows, by candidates of a curve.
    """

    def __init__(self, kind: _KindBlend, own: Sequence[OwnRows]) -> None:
        self.kind, self.own = kind, own
        logs = kind.log_weights + np.concatenate([rows.log_evidence for rows in own])
        weights = weigh_logs([logs])[0]
        places = [(group, member) for group, rows in enumerate(own) for member in range(len(rows.log_evidence))]
        kept = [place for place in np.argsort(-weights, kind="stable") if weights[place] >= MIN_RELATIVE_WEIGHT]
        self.members = [places[place] for place in kept]
        """Group and place of each candidate that is left, the most probable first."""
        self.weights: Floats = weights[kept] / weights[kept].sum()


@dataclass(frozen=True, slots=True, eq=False)
class UpdatedFit:
    """A ``BoardFit``: the kind's fit with the board's own measurements.

    Attributes:
        kind: The fit of the kind.
        x: The board's own modes as shares, shape (o, 4).
        time: Candidates for log time.
        power: Candidates for log power.
    """

    kind: KindFit
    x: Floats
    time: UpdatedBlend
    power: UpdatedBlend

    def predict(self, x: KnobTable) -> tuple[QuantityPrediction, QuantityPrediction]:
        near = _stack_correlations(x, self.x)
        time, power = _tabulate(self.kind, x)
        return _UpdatedPrediction(self.time, time, near), _UpdatedPrediction(self.power, power, near)


def _stack_correlations(x: KnobTable, seen: Floats) -> Float32Array:
    """Return the correlations of the misfits of m modes with those of n modes, shape (m, n)."""
    correlate = _mode_correlation(x)
    rows = [correlate(tuple(row)) for row in seen.tolist()]
    return np.array(rows, dtype=np.float32).reshape(len(rows), len(x.x))


@lru_cache(maxsize=16)
def _mode_correlation(x: KnobTable) -> Callable[[tuple[float, ...]], Float32Array]:
    """Return the function that correlates a mode's misfit with those of the n modes of ``x``, shape (n,).

    Its results are kept, as boards of a kind measure the same few modes; only of a few tables of modes.
    """

    @lru_cache(maxsize=256)
    def correlate(mode: tuple[float, ...]) -> Float32Array:
        return misfit_correlation(x, np.array([mode]))[:, 0]

    return correlate


class _UpdatedPrediction:
    """Prediction of an ``UpdatedBlend``; see ``QuantityPrediction``."""

    def __init__(self, blend: UpdatedBlend, modes: Sequence[TabulatedModes], near: Float32Array) -> None:
        self._blend, self._modes, self._near = blend, modes, near
        self._each: Floats = np.empty((len(blend.members), near.shape[1]))
        for group, posterior in enumerate(blend.kind.posteriors):
            places = [place for place, (its_group, _) in enumerate(blend.members) if its_group == group]
            if places:
                members = [blend.members[place][1] for place in places]
                self._each[places] = posterior.update_means(blend.own[group], members, modes[group], near)
        self.mean: Floats = blend.weights @ self._each

    def predict_sd(self, rows: NDArray[np.intp] | None) -> Floats:
        """Return the spread, whose own part is that of the most probable candidate: see ``CandidateBlend``."""
        group, member = self._blend.members[0]
        modes, posterior, own_rows = self._modes[group], self._blend.kind.posteriors[group], self._blend.own[group]
        some = slice(None) if rows is None else rows
        moved = posterior.project(own_rows, member, modes, self._near, rows=some)
        own = posterior.predict_sd(own_rows, member, posterior.predict_variance(modes, member)[some], moved)
        apart = np.square(self._each[:, some] - self.mean[some])
        sd: Floats = np.sqrt(np.square(own) + self._blend.weights @ apart)
        return sd


def fit_boards(
    knowledge: Sequence[PriorKnowledge],
    list_priors: Sequence[Callable[[], PriorGroups]],
    measurements: Sequence[Sequence[Measurement]],
) -> list[BoardFit]:
    """Fit several boards to their measurements at once.

    Args:
        knowledge: What is known of each board before.
        list_priors: Return the candidates of each board.
        measurements: All measurements that each board knows of.

    Raises:
        BadInput: A measurement is not a finite number above 0, or a board's candidates predict nothing finite.
    """
    split = [split_by_board(every) for every in measurements]
    evidence = {
        place: _KindEvidence(known.maxn, known.priors, known.references, errors=known.errors, measurements=peers)
        for place, (known, (own, peers)) in enumerate(zip(knowledge, split, strict=True))
        if has_enough_peers(own, peers)
    }
    batches: dict[KindFit, dict[int, PooledMeasurements]] = {}
    for place, kind in zip(evidence, _fit_kinds(list(evidence.values())), strict=True):
        batches.setdefault(kind, {})[place] = pool_measurements(split[place][0], knowledge[place].maxn)
    fits: dict[int, BoardFit] = {}
    for kind, boards in batches.items():
        fits |= zip(boards, kind.update(list(boards.values())), strict=True)
    left = [place for place in range(len(measurements)) if place not in evidence]
    seen = [pool_measurements(measurements[place], knowledge[place].maxn) for place in left]
    fits |= zip(left, fit_pooled_boards([list_priors[place]() for place in left], seen), strict=True)
    return [fits[place] for place in range(len(measurements))]


@dataclass(frozen=True, slots=True)
class _KindEvidence:
    """All that a ``KindFit`` depends on; the idle power of others is not known."""

    maxn: PowerMode
    priors: tuple[Coefficients, ...]
    references: tuple[ProfileTable, ...]
    errors: tuple[tuple[float, float], ...]
    measurements: tuple[Measurement, ...]

    def __hash__(self) -> int:
        """Hash the times alone: hashing dozens of measurements whole takes longer than adding a board's own to them."""
        return hash(tuple(one.step_s for one in self.measurements))


_KIND_FITS: dict[_KindEvidence, KindFit] = {}
"""The last fits, the oldest first."""
_MAX_KIND_FITS = 64


def _fit_kinds(requested: Sequence[_KindEvidence]) -> list[KindFit]:
    """Return the fit for each evidence; those that are new are fitted together."""
    new = [evidence for evidence in dict.fromkeys(requested) if evidence not in _KIND_FITS]
    seen = [pool_measurements(evidence.measurements, evidence.maxn) for evidence in new]
    priors = [_group_kind_priors(one.maxn, one.priors, one.references, one.errors) for one in new]
    for evidence, fit in zip(new, fit_pooled_boards(priors, seen), strict=True):
        _KIND_FITS[evidence] = KindFit(fit)
    found = [_KIND_FITS[evidence] for evidence in requested]
    for evidence in list(_KIND_FITS)[:-_MAX_KIND_FITS]:
        del _KIND_FITS[evidence]
    return found


@lru_cache(maxsize=16)
def _group_kind_priors(
    maxn: PowerMode,
    priors: tuple[Coefficients, ...],
    references: tuple[ProfileTable, ...],
    errors: tuple[tuple[float, float], ...],
) -> PriorGroups:
    return group_priors(PriorKnowledge(maxn, priors, references, errors=errors))
