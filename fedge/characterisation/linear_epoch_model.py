"""Linear predictor of an epoch's time and energy from the characterisation paper: two least-squares lines.

Symbols: T seconds of an epoch, E joules, f clocks of CPU, GPU and memory.

    T_epoch = a f_cpu + b cores + c f_gpu + d f_mem + e            one line per network
    E_epoch = a' f_cpu + b' cores + c' f_gpu + d' f_mem + g T + e' one line for all networks

The paper's four training modes do not determine the five unknowns of T. Of all lines that fit equally well, the one
with the smallest slopes is taken, where each knob is a share of the board's top value (its clock or core count; the
seconds of g as a share of the longest epoch). This scaling is ours: it weighs a clock step by its relative size.
``fedge.predictors.linear_regression`` has the same two lines for one minibatch of one network, as a predictor for
experiments.

References:
    SIGMETRICS 2022, doi 10.1145/3570604.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.predictors.linear_regression import LinearFit, fit_line
from fedge.predictors.measurement_columns import PREDICTION_FLOOR, apply_floor
from fedge.types import Floats, Modes, PowerMode


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    """A measured epoch."""

    network: str
    mode: PowerMode
    epoch_s: float
    energy_j: float | None = None


@dataclass(slots=True, eq=False)
class LinearEpochModel:
    """The two lines.

    Lines become negative in modes much faster than the measured ones; predictions are therefore at least
    ``PREDICTION_FLOOR`` times the smallest measured value, of the network for time and of all networks for energy.

    Attributes:
        maxn: The board's top mode, which scales the knobs.
        time_: The fitted line of time per network.
        energy_: The fitted line of energy, or None.
    """

    maxn: PowerMode
    time_: dict[str, LinearFit] = field(init=False, default_factory=dict)
    energy_: LinearFit | None = field(init=False, default=None)
    _least_s: dict[str, Floats] = field(init=False, default_factory=dict)
    _least_j: Floats = field(init=False, default_factory=lambda: np.zeros(1))

    def fit(self, seen: Sequence[MeasuredEpoch]) -> Self:
        """Fit one line of time per network and one line of energy, and return the model.

        Raises:
            BadInput: There are no epochs.
        """
        if not seen:
            raise BadInput("the simple predictor", "no epoch", "at least one epoch of a network in a power mode")
        self.time_, self.energy_, self._least_s = {}, None, {}
        for network in dict.fromkeys(one.network for one in seen):
            of_it = [one for one in seen if one.network == network]
            epoch_s = np.array([one.epoch_s for one in of_it])
            self.time_[network] = fit_line(self._knob_shares(_modes_of_epochs(of_it)), epoch_s, np.ones(4))
            self._least_s[network] = epoch_s
        metered = [(one, one.energy_j) for one in seen if one.energy_j is not None]
        if metered:
            self._fit_energy([one for one, _ in metered], np.array([joules for _, joules in metered]))
        return self

    def _fit_energy(self, seen: Sequence[MeasuredEpoch], energy_j: Floats) -> None:
        # Fit to measured times, as in ``fedge.predictors.linear_regression``: with a single network, times predicted by
        # its line are a linear combination of the knobs and carry no further information.
        epoch_s = np.array([one.epoch_s for one in seen])
        columns = np.column_stack([self._knob_shares(_modes_of_epochs(seen)), epoch_s])
        self.energy_ = fit_line(columns, energy_j, np.array([1.0, 1.0, 1.0, 1.0, epoch_s.max()]))
        self._least_j = energy_j

    def predict(self, network: str, modes: Modes) -> tuple[Floats, Floats | None]:
        """Predict seconds and joules (None if no energy was fitted) of an epoch in every mode, each of shape (n,).

        Raises:
            UnknownName: The network is not fitted.
        """
        if network not in self.time_:
            raise UnknownName("the network", network, tuple(self.time_))
        shares = self._knob_shares(modes)
        epoch_s: Floats = apply_floor(self.time_[network].predict(shares), self._least_s[network])
        if self.energy_ is None:
            return epoch_s, None
        joules = self.energy_.predict(np.column_stack([shares, epoch_s]))
        return epoch_s, np.maximum(joules, PREDICTION_FLOOR * self._least_j.min())

    def _knob_shares(self, modes: Modes) -> Floats:
        shares: Floats = modes.knobs / np.array(self.maxn.knobs)
        return shares


def _modes_of_epochs(seen: Sequence[MeasuredEpoch]) -> Modes:
    return stack_modes(one.mode for one in seen)
