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

from dataclasses import dataclass

import numpy as np

from fedge.physics.knob_table import KnobTable
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

    def add_rows(self, own: QuantityRows, within: Float32Array, alike: Float32Array) -> OwnRows:
        """Condition the candidates on the board's own rows.

        A row's robust weight is that of its deviation from what the other boards foretell.

        Args:
            own: The rows.
            within: Correlation of their misfits, shape (o, o).
            alike: Correlation of their misfits with those of the m rows, shape (o, m).
        """
        curve = self.curve(self.posterior.best, own.x)
        slopes = curve.stack_slopes()
        known = self.posterior.whitener @ (self._misfit * alike.T)
        along = self._after @ slopes - self._seen.swapaxes(-1, -2) @ known
        away = self._seen @ slopes + known
        covariance = _transpose(along) @ slopes - _transpose(away) @ known + self._misfit * within
        covariance += self.posterior.rows.offset_sd**2
        off = own.log - predict_mean_log(self.posterior, curve, alike)
        variance = np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
        noise = np.square(own.noise_sd)
        weights = np.minimum(student_weights(off / np.sqrt(variance + noise)), 1.0)
        factor = _factorise(covariance, (noise + variance) / weights - variance)
        whitener = np.asarray(np.linalg.inv(factor), dtype=np.float64)
        whitened: Floats = (whitener @ off[..., None])[..., 0]
        plain = np.linalg.solve(_factorise(covariance, np.broadcast_to(noise, off.shape)), off[..., None])[..., 0]
        lost = 0.5 * STUDENT_DEGREES * (np.log(weights) + 1.0 - weights).sum(axis=-1)
        spans = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        return OwnRows(
            along,
            away,
            whitener=whitener,
            whitened=whitened,
            log_evidence=lost - 0.5 * np.square(whitened).sum(axis=-1) - spans,
            surprise=np.minimum(np.square(plain), OUTLIER_SD**2).sum(axis=-1),
        )

    def project(self, own: OwnRows, member: int, modes: TabulatedModes, near: Float32Array) -> Float32Array:
        """Return u = L^-1 C(o, n) of one candidate, shape (o, n).

        Args:
            own: The board's own rows.
            member: The candidate.
            modes: The modes.
            near: Correlation of the misfits of own rows and modes, shape (o, n).
        """
        whitener = own.whitener[member]
        away = whitener @ own.row_covariance[member].T @ self.posterior.whitener[member]
        moved: Float32Array = (whitener @ own.slope_covariance[member].T).astype(np.float32) @ modes.slopes[member]
        moved -= (away * self._misfit[member]).astype(np.float32) @ modes.near
        moved += (whitener * self._misfit[member]).astype(np.float32) @ near
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
