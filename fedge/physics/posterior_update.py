"""Update of a fit to other boards' measurements by the predicted board's own, without another fit.

Symbols: X the m rows of other boards, o the board's own rows, n the modes; th*, J, S, R, B and W (inverse Cholesky
factor of K(X, X) + noise) as in ``misfit_process``; a(x) = R(X, x), H = W J(X)' S, A = S - H' H. Given the rows X, the
covariance of two values of the board is

C(o, n) = J(o)' A J(n) - (H J(o))' k(n) - k(o)' H J(n) - k(o)' k(n) + R(o, n) + B,   k(x) = W a(x)
        = (A J(o) - H' k(o))' J(n) - (H J(o) + k(o))' k(n) + R(o, n) + B

and with L L' = C(o, o) + noise, u = L^-1 C(o, n) and z = L^-1 (y - mean(o)) the board's own rows move the mean by u' z
and lower the variance by u' u. All that depends on X and n alone is computed once for many boards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.log_derivatives import LinearizedCurve
from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    OUTLIER_SD,
    SPREAD_PRIOR_ROWS,
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    predict_mean_log,
    predict_variance_log,
)
from fedge.physics.robust_fit import STUDENT_DEGREES, student_weights
from fedge.physics.time_power_model import KnobTable
from fedge.types import Floats


class TabulatedModes:
    """Values of n modes as other boards tell them, by each of g candidates.

    Attributes:
        mean: Mean log value, shape (g, n).
        slopes: J(n), shape (g, k, n).
        near: R(X, n) by a misfit of 1, shape (m, n).
    """

    def __init__(self, posterior: QuantityPosterior, curve: LinearizedCurve, alike: Float32Array) -> None:
        self.mean = predict_mean_log(posterior, curve, alike)
        self.slopes = curve.stack_slopes_single()
        self.near = np.ascontiguousarray(alike.T)
        self._posterior, self._values = posterior, curve.values
        self._variances: dict[int, Floats] = {}

    def variance(self, member: int) -> Floats:
        """Return the variance of one candidate's log values, shape (n,); few candidates are asked for theirs."""
        if member not in self._variances:
            one, slopes = np.array([member]), self.slopes[member]
            curve = LinearizedCurve(self._values[one], len(slopes), lambda: iter(slopes))
            self._variances[member] = predict_variance_log(self._posterior.select(one), curve, self.near.T)[0]
        return self._variances[member]


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows:
    """The board's own rows, by each of g candidates.

    Attributes:
        slope_covariance: A J(o) - H' k(o), shape (g, k, o).
        row_covariance: H J(o) + k(o), shape (g, m, o).
        whitener: L^-1, shape (g, o, o).
        whitened: z, shape (g, o).
        log_evidence: Log probability density of the rows given those of other boards, up to a constant, shape (g,).
        surprise: Sum of the squared deviations in standard deviations, each clipped, shape (g,).
    """

    slope_covariance: Floats
    row_covariance: Floats
    whitener: Floats
    whitened: Floats
    log_evidence: Floats
    surprise: Floats


class SharedPosterior:
    """Candidates' posteriors of one quantity, fitted to other boards of the kind, which many boards update.

    Args:
        posterior: The g posteriors.
        curve: Their curve.
    """

    def __init__(self, posterior: QuantityPosterior, curve: KnobCurve) -> None:
        self.posterior, self.curve = posterior, curve
        self._misfit: Floats = np.square(posterior.misfit_sd)[:, None, None]
        self._seen: Floats = posterior.whitener @ (posterior.slopes.swapaxes(-1, -2) @ posterior.prior_cov)
        self._after: Floats = posterior.prior_cov - self._seen.swapaxes(-1, -2) @ self._seen

    def tabulate(self, x: KnobTable, alike: Float32Array) -> TabulatedModes:
        """Compute what the other boards tell of n modes.

        Args:
            x: The modes.
            alike: Correlation of the board's misfits in them with those of the m rows, shape (n, m).
        """
        return TabulatedModes(self.posterior, self.curve(self.posterior.best, x), alike)

    def add_rows(
        self, own: Sequence[QuantityRows], within: Sequence[Float32Array], alike: Sequence[Float32Array]
    ) -> list[OwnRows]:
        """Condition the candidates on the own rows of b boards, o rows each.

        A row's robust weight is that of its deviation from what the other boards foretell.

        Args:
            own: The rows by board.
            within: Correlation of their misfits, shape (o, o), by board.
            alike: Correlation of their misfits with those of the m rows, shape (o, m), by board.
        """
        curve = self._split_curve(np.stack([rows.x for rows in own]))
        slopes, far = curve.stack_slopes(), np.stack(alike)[:, None]
        known: Floats = self.posterior.whitener @ (self._misfit * far.swapaxes(-1, -2))
        along = self._after @ slopes - _transpose(self._seen) @ known
        away = self._seen @ slopes + known
        covariance = _transpose(along) @ slopes - _transpose(away) @ known + self._misfit * np.stack(within)[:, None]
        covariance += self.posterior.rows.offset_sd**2
        # Multiplied board by board: a larger matrix would be summed in another order, so that a board's result would
        # depend on those that are updated with it.
        off = np.stack([rows.log for rows in own])[:, None] - predict_mean_log(self.posterior, curve, far)
        variance = np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
        noise = np.square([rows.noise_sd for rows in own])[:, None]
        weights = np.minimum(student_weights(off / np.sqrt(variance + noise)), 1.0)
        factor = _factorise(covariance, (noise + variance) / weights - variance)
        whitener = np.asarray(np.linalg.inv(factor), dtype=np.float64)
        whitened: Floats = (whitener @ off[..., None])[..., 0]
        plain = np.linalg.solve(_factorise(covariance, np.broadcast_to(noise, off.shape)), off[..., None])[..., 0]
        lost = 0.5 * STUDENT_DEGREES * (np.log(weights) + 1.0 - weights).sum(axis=-1)
        spans = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        evidence = lost - 0.5 * np.square(whitened).sum(axis=-1) - spans
        surprise = np.minimum(np.square(plain), OUTLIER_SD**2).sum(axis=-1)
        columns = along, away, whitener, whitened, evidence, surprise
        return [OwnRows(*each) for each in zip(*columns, strict=True)]

    def _split_curve(self, x: Floats) -> LinearizedCurve:
        """Return the curve of shape (b, g, o) at the modes of b boards, shape (b, o, 4), in one evaluation."""
        joined = self.curve(self.posterior.best, x.reshape(-1, x.shape[-1]))

        def split(values: Floats) -> Floats:
            every = np.broadcast_to(values, joined.values.shape).reshape(len(joined.values), *x.shape[:2])
            return np.ascontiguousarray(every.swapaxes(0, 1))

        return LinearizedCurve(split(joined.values), joined.count, lambda: map(split, joined.iterate_rows()))

    def update_means(self, own: OwnRows, members: Sequence[int], modes: TabulatedModes, near: Float32Array) -> Floats:
        """Return the mean log values of some candidates, shape (members, n): mean + z' u without u itself.

        Args:
            own: The board's own rows.
            members: The candidates.
            modes: The modes.
            near: Correlation of the misfits of own rows and modes, shape (o, n).
        """
        chosen = list(members)
        pull = own.whitened[chosen, None] @ own.whitener[chosen]
        scaled = pull * self._misfit[chosen]
        along = (pull @ _transpose(own.slope_covariance[chosen])).astype(np.float32)
        away = scaled @ _transpose(own.row_covariance[chosen]) @ self.posterior.whitener[chosen]
        moved = np.concatenate([slope @ modes.slopes[member] for slope, member in zip(along, chosen, strict=True)])
        moved -= away[:, 0].astype(np.float32) @ modes.near
        moved += scaled[:, 0].astype(np.float32) @ near
        moved += (self.posterior.rows.offset_sd**2 * pull.sum(axis=-1)).astype(np.float32)
        means: Floats = modes.mean[chosen] + moved
        return means

    def project(
        self,
        own: OwnRows,
        member: int,
        modes: TabulatedModes,
        near: Float32Array,
        rows: NDArray[np.intp] | slice = slice(None),
    ) -> Float32Array:
        """Return u = L^-1 C(o, n) of one candidate, shape (o, n).

        Args:
            own: The board's own rows.
            member: The candidate.
            modes: The modes.
            near: Correlation of the misfits of own rows and modes.
            rows: The n of the modes that are needed.
        """
        whitener = own.whitener[member]
        away = whitener @ own.row_covariance[member].T @ self.posterior.whitener[member]
        moved: Float32Array = (whitener @ own.slope_covariance[member].T).astype(np.float32) @ modes.slopes[member][
            :, rows
        ]
        moved -= (away * self._misfit[member]).astype(np.float32) @ modes.near[:, rows]
        moved += (whitener * self._misfit[member]).astype(np.float32) @ near[:, rows]
        moved += (self.posterior.rows.offset_sd**2 * whitener.sum(axis=-1, keepdims=True)).astype(np.float32)
        return moved

    def predict_sd(self, own: OwnRows, member: int, variance: Floats, moved: Float32Array) -> Floats:
        """Return the standard deviation of the next measurement's log in n modes by one candidate, shape (n,).

        Args:
            own: The board's own rows.
            member: The candidate.
            variance: Variance that other boards leave, shape (n,).
            moved: ``project`` of the modes, shape (o, n).
        """
        left = np.maximum(variance - np.square(moved).sum(axis=0), 0.0) + self.posterior.noise_sd**2
        rows = SPREAD_PRIOR_ROWS + len(self.posterior.rows.log)
        before = self.posterior.scale[member] ** 2 * rows
        sd: Floats = np.sqrt(left * (before + own.surprise[member]) / (rows + own.whitened.shape[-1]))
        return sd


def _transpose(matrices: Floats) -> Floats:
    return matrices.swapaxes(-1, -2)


def _factorise(covariance: Floats, diagonal: Floats) -> Floats:
    """Return the Cholesky factors of matrices (..., o, o) with ``diagonal`` (..., o) added."""
    matrices = covariance + diagonal[..., None] * np.eye(covariance.shape[-1])
    return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
