"""Update of a fit to other boards' measurements by the predicted board's own, without another fit.

Symbols: X the m rows of other boards, o the board's own rows, n the modes; th*, J, S, R, B and W (inverse Cholesky
factor of K(X, X) + noise) as in ``misfit_process``; a(x) = R(X, x), H = W J(X)' S, A = S - H' H. Boards measure the
same modes, so a(x) = E R(U, x) with the u distinct modes U of the rows and E that copies their values to the m rows.
Given the rows X, the covariance of two values of the board is

C(o, n) = J(o)' A J(n) - (H J(o))' k(n) - k(o)' H J(n) - k(o)' k(n) + R(o, n) + B,   k(x) = W a(x)
        = (A J(o) - H' k(o))' J(n) - (H J(o) + k(o))' k(n) + R(o, n) + B

and with L L' = C(o, o) + noise, u = L^-1 C(o, n) and z = L^-1 (y - mean(o)) the board's own rows move the mean by u' z
and lower the variance by u' u. All that depends on X and n alone is computed once for many boards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedge.physics.matern import Float32Array
from fedge.physics.misfit_process import (
    SPREAD_PRIOR_ROWS,
    KnobCurve,
    QuantityPosterior,
    QuantityRows,
    explain_residuals,
)
from fedge.physics.robust_fit import student_weights
from fedge.physics.time_power_model import KnobTable
from fedge.types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class TabulatedModes:
    """Values of n modes as other boards tell them, by each of g candidates.

    Attributes:
        mean: Mean log value, shape (g, n).
        slopes: J(n), shape (g, k, n).
        near: R(U, n) by a misfit of 1, shape (u, n).
        variances: Variance of the log values by candidate, shape (n,); few candidates are asked for theirs.
    """

    mean: Floats
    slopes: Float32Array
    near: Float32Array
    variances: dict[int, Floats] = field(default_factory=dict)


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
        self.x, place = np.unique(posterior.rows.x, axis=0, return_inverse=True)
        """Modes U of the rows as shares of the top mode, shape (u, 4)."""
        copies = (place.reshape(-1, 1) == np.arange(len(self.x))).astype(np.float64)
        self._misfit: Floats = np.square(posterior.misfit_sd)[:, None, None]
        self._seen: Floats = posterior.whitener @ (posterior.slopes.swapaxes(-1, -2) @ posterior.prior_cov)
        self._after: Floats = posterior.prior_cov - self._seen.swapaxes(-1, -2) @ self._seen
        self._drawn: Floats = self._misfit * (posterior.whitener @ copies)
        gain = posterior.gain[..., None]
        self._moved: Floats = posterior.shift[..., None] + posterior.prior_cov @ (posterior.slopes @ gain)
        self._pull: Floats = self._misfit * (gain.swapaxes(-1, -2) @ copies)

    def tabulate(self, x: KnobTable, near: Float32Array) -> TabulatedModes:
        """Compute what the other boards tell of n modes.

        Args:
            x: The modes.
            near: Correlation of the board's misfits in them with those in the modes U, shape (u, n).
        """
        curve = self.curve(self.posterior.best, x)
        slopes = curve.stack_slopes_single()
        mean = curve.values + (self._moved.swapaxes(-1, -2).astype(np.float32) @ slopes)[:, 0]
        mean += self._pull[:, 0].astype(np.float32) @ near
        return TabulatedModes(mean, slopes, near)

    def predict_variance(self, modes: TabulatedModes, member: int) -> Floats:
        """Return the variance of one candidate's log values in tabulated modes, shape (n,)."""
        if member not in modes.variances:
            basis, drawn = np.linalg.qr(self._drawn[member])
            known = drawn.astype(np.float32) @ modes.near
            slopes = modes.slopes[member]
            moved = self._after[member].astype(np.float32) @ slopes
            moved -= (2.0 * self._seen[member].T @ basis).astype(np.float32) @ known
            moved *= slopes
            np.square(known, out=known)
            variance = moved.sum(axis=0) - known.sum(axis=0)
            modes.variances[member] = variance + self._misfit[member, 0] + self.posterior.rows.offset_sd**2
        return modes.variances[member]

    def add_rows(
        self, own: Sequence[QuantityRows], within: Sequence[Float32Array], alike: Sequence[Float32Array]
    ) -> list[OwnRows]:
        """Condition the candidates on the own rows of several boards.

        A row's robust weight is that of its deviation from what the other boards foretell.

        Args:
            own: The rows by board, o each.
            within: Correlation of their misfits, shape (o, o), by board.
            alike: Correlation of their misfits with those in the modes U, shape (o, u), by board.
        """
        curve = self.curve(self.posterior.best, np.concatenate([rows.x for rows in own]))
        slopes = np.moveaxis(curve.stack_slopes(), -1, 0)
        values = np.broadcast_to(curve.values, (len(self._misfit), len(slopes))).T
        starts = np.cumsum([0, *(len(rows.log) for rows in own)])
        found: dict[int, OwnRows] = {}
        for count in dict.fromkeys(len(rows.log) for rows in own):
            boards = [board for board, rows in enumerate(own) if len(rows.log) == count]
            places = starts[boards][:, None] + np.arange(count)
            found |= zip(
                boards,
                self._add_equally_many(
                    [own[board] for board in boards],
                    within=np.stack([within[board] for board in boards]),
                    alike=np.stack([alike[board] for board in boards]),
                    values=np.ascontiguousarray(np.moveaxis(values[places], 1, -1)),
                    slopes=np.ascontiguousarray(np.moveaxis(slopes[places], 1, -1)),
                ),
                strict=True,
            )
        return [found[board] for board in range(len(own))]

    def _add_equally_many(
        self, own: Sequence[QuantityRows], *, within: Float32Array, alike: Float32Array, values: Floats, slopes: Floats
    ) -> list[OwnRows]:
        """Condition the candidates on the rows of b boards, o each; see ``add_rows``.

        Args:
            own: The rows by board.
            within: Their correlation, shape (b, o, o).
            alike: Their correlation with the modes U, shape (b, o, u).
            values: The curves at their modes, shape (b, g, o).
            slopes: J(o), shape (b, g, k, o).
        """
        # Multiplied board by board: a larger matrix would be summed in another order, so that a board's result would
        # depend on those that are updated with it.
        far = alike.swapaxes(-1, -2)[:, None]
        known: Floats = self._drawn @ far
        along = self._after @ slopes - _transpose(self._seen) @ known
        away = self._seen @ slopes + known
        covariance = _transpose(along) @ slopes - _transpose(away) @ known + self._misfit * within[:, None]
        covariance += self.posterior.rows.offset_sd**2
        mean = values + (_transpose(self._moved) @ slopes + self._pull @ far)[..., 0, :]
        off = np.stack([rows.log for rows in own])[:, None] - mean
        variance = np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
        noise = np.square([rows.noise_sd for rows in own])[:, None]
        weights = np.minimum(student_weights(off / np.sqrt(variance + noise)), 1.0)
        spread = (noise + variance) / weights - variance
        exact = np.broadcast_to(noise, off.shape)
        columns = along, away, *explain_residuals(off, covariance, spread, exact=exact, weights=weights)
        return [OwnRows(*each) for each in zip(*columns, strict=True)]

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
        away = pull @ _transpose(own.row_covariance[chosen]) @ self._drawn[chosen]
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
        away = whitener @ own.row_covariance[member].T @ self._drawn[member]
        moved: Float32Array = (whitener @ own.slope_covariance[member].T).astype(np.float32) @ modes.slopes[member][
            :, rows
        ]
        moved -= away.astype(np.float32) @ modes.near[:, rows]
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
