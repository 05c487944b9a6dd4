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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from fedge.costs.layer_estimate import estimate_network_cost
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput, UnknownName
from fedge.modes import stack_modes
from fedge.physics.time_power_model import compute_step_s
from fedge.predictors.linear_regression import LinearFit, fit_line
from fedge.predictors.measurement_columns import PREDICTION_FLOOR, apply_floor
from fedge.types import DeviceSpec, Floats, Modes, PowerMode, Workload

ScalingBasis = Literal["epochs", "layers"]


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    """A measured epoch.

    Attributes:
        network: Name of the network.
        mode: The power mode.
        epoch_s: Seconds per epoch.
        energy_j: Joules per epoch; None if not metered.
    """

    network: str
    mode: PowerMode
    epoch_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LinearEpochPredictions:
    """Predicted epochs; arrays of shape (n,), one element per mode. ``energy_j`` is None if no energy was fitted."""

    modes: Modes
    epoch_s: Floats
    energy_j: Floats | None


@dataclass(frozen=True, slots=True)
class ScaledNetwork:
    """A network without a line of its own, as a multiple of another one.

    Attributes:
        network: Name of the network.
        like: The fitted network.
        ratio: Duration of the network's epoch relative to that of ``like``.
        by: Source of the ratio: measured ``epochs`` of the network, or the ``layers`` of both networks.
    """

    network: str
    like: str
    ratio: float
    by: ScalingBasis


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
    _scaled: dict[str, ScaledNetwork] = field(init=False, default_factory=dict)

    def fit(self, seen: Sequence[MeasuredEpoch]) -> Self:
        """Fit one line of time per network and one line of energy, and return the model.

        Args:
            seen: Measured epochs of any networks; those without energy are left out of the second line.

        Raises:
            BadInput: There are no epochs.
        """
        if not seen:
            raise BadInput("the simple predictor", "no epoch", "at least one epoch of a network in a power mode")
        self.time_, self.energy_, self._least_s, self._scaled = {}, None, {}, {}
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

    def add_scaled(self, scaled: ScaledNetwork) -> None:
        """Add a network without a line of its own.

        Args:
            scaled: The network, as a multiple of a fitted one.

        Raises:
            UnknownName: The other network is not fitted.
        """
        if scaled.like not in self.time_:
            raise UnknownName("the network to scale", scaled.like, tuple(self.time_))
        self._scaled[scaled.network] = scaled

    def predict(self, network: str, modes: Modes) -> LinearEpochPredictions:
        """Predict an epoch of a network in every mode.

        Args:
            network: A fitted or scaled network.
            modes: The n modes.

        Raises:
            UnknownName: The network is neither fitted nor scaled.
        """
        ratio, name = 1.0, network
        if network not in self.time_ and network in self._scaled:
            ratio, name = self._scaled[network].ratio, self._scaled[network].like
        if name not in self.time_:
            raise UnknownName("the network", network, (*self.time_, *self._scaled))
        shares = self._knob_shares(modes)
        epoch_s: Floats = ratio * apply_floor(self.time_[name].predict(shares), self._least_s[name])
        if self.energy_ is None:
            return LinearEpochPredictions(modes, epoch_s, None)
        joules = self.energy_.predict(np.column_stack([shares, epoch_s]))
        # A scaled network may be shorter than all measured ones, which lowers its floor in proportion.
        return LinearEpochPredictions(
            modes, epoch_s, np.maximum(joules, PREDICTION_FLOOR * min(ratio, 1.0) * self._least_j.min())
        )

    def _knob_shares(self, modes: Modes) -> Floats:
        top = self.maxn
        shares: Floats = modes.knobs / np.array([top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz])
        return shares


def _modes_of_epochs(seen: Sequence[MeasuredEpoch]) -> Modes:
    return stack_modes(one.mode for one in seen)


def scale_by_epochs(fitted: LinearEpochModel, like: str, seen: Sequence[MeasuredEpoch]) -> ScaledNetwork:
    """Scale a network by its measured epochs, as the geometric mean of the ratios in the same modes.

    Args:
        fitted: The fitted model.
        like: A fitted network.
        seen: One or a few epochs of the new network.

    Raises:
        BadInput: There are no epochs.
        UnknownName: ``like`` is not fitted.
    """
    if not seen:
        raise BadInput("scaling a network", "no epoch of it", "one epoch at least, or the ratio of the layers")
    said = fitted.predict(like, _modes_of_epochs(seen)).epoch_s
    ratio = float(np.exp(np.mean(np.log([one.epoch_s for one in seen] / said))))
    return ScaledNetwork(seen[0].network, like, ratio, "epochs")


def scale_by_layers(
    device: DeviceSpec, works: Mapping[str, tuple[Workload, int]], network: str, like: str
) -> ScaledNetwork:
    """Scale a network by the cost of its layers at the top clocks; the ratio is estimated, not measured.

    Args:
        device: The board.
        works: Per network, its minibatch (with ``layers``) and the number of minibatches per epoch.
        network: The new network.
        like: The fitted network.
    """

    def epoch_s(name: str) -> float:
        work, steps = works[name]
        cost = estimate_network_cost(device, work, load_catalogue())
        return steps * float(compute_step_s(cost.coefficients, device.maxn, stack_modes([device.maxn]))[0])

    return ScaledNetwork(network, like, epoch_s(network) / epoch_s(like), "layers")
