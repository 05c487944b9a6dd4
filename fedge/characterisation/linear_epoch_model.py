"""The characterisation paper's simple predictor of an epoch's time and energy: two least-squares lines.

SIGMETRICS 2022 (doi 10.1145/3570604). Symbols: T seconds of an epoch, E joules, f clocks of CPU, GPU and memory.

    T_epoch = a f_cpu + b cores + c f_gpu + d f_mem + e            one line per network
    E_epoch = a' f_cpu + b' cores + c' f_gpu + d' f_mem + g T + e' one line for all networks

The paper's four training modes leave the five unknowns of T open: of all lines that fit alike we take the one of least
slopes, each knob counted as a share of the board's top value (its clock or core count; the seconds of g as a share of
the longest epoch). That scale is ours: on it a step of a clock counts by how much it speeds the board up.
``fedge.predictors.linear_regression`` is the same two lines for one minibatch of one network, as a predictor of
experiments.
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
    """An epoch as it was seen: of which network, in which mode; joules where somebody metered them."""

    network: str
    mode: PowerMode
    epoch_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LinearEpochPredictions:
    """What epochs are predicted to take; arrays of shape (n,), a row per mode. ``energy_j`` is None without a meter."""

    modes: Modes
    epoch_s: Floats
    energy_j: Floats | None


@dataclass(frozen=True, slots=True)
class ScaledNetwork:
    """A network without a line of its own: its epochs take ``ratio`` times as long as those of ``like``.

    ``by`` says where the ratio comes from: ``epochs`` of the network that were seen in a mode or two, or, ours, the
    ``layers`` of both networks.
    """

    network: str
    like: str
    ratio: float
    by: ScalingBasis


@dataclass(slots=True, eq=False)
class LinearEpochModel:
    """The two lines. ``maxn`` is the board's top mode, the scale of the knobs. Learnt: ``time_``, ``energy_``.

    Lines fall below zero where modes are much faster than those that were seen; no figure is below
    ``PREDICTION_FLOOR`` of the least that was seen, of the network in seconds and of all in joules.
    """

    maxn: PowerMode
    time_: dict[str, LinearFit] = field(init=False, default_factory=dict)
    energy_: LinearFit | None = field(init=False, default=None)
    _least_s: dict[str, Floats] = field(init=False, default_factory=dict)
    _least_j: Floats = field(init=False, default_factory=lambda: np.zeros(1))
    _scaled: dict[str, ScaledNetwork] = field(init=False, default_factory=dict)

    def fit(self, seen: Sequence[MeasuredEpoch]) -> Self:
        """Fit a line of time for each network, and that of energy; raises ``BadInput`` when nothing was seen."""
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
        # At the seconds that were seen, as in ``fedge.predictors.linear_regression``: those on a network's line say
        # nothing more
        # than the knobs where there is but one network.
        epoch_s = np.array([one.epoch_s for one in seen])
        columns = np.column_stack([self._knob_shares(_modes_of_epochs(seen)), epoch_s])
        self.energy_ = fit_line(columns, energy_j, np.array([1.0, 1.0, 1.0, 1.0, epoch_s.max()]))
        self._least_j = energy_j

    def add_scaled(self, scaled: ScaledNetwork) -> None:
        """Take a network without a line of its own for a longer or shorter one of another; ``UnknownName`` for that."""
        if scaled.like not in self.time_:
            raise UnknownName("the network to scale", scaled.like, tuple(self.time_))
        self._scaled[scaled.network] = scaled

    def predict(self, network: str, modes: Modes) -> LinearEpochPredictions:
        """An epoch of ``network`` in every mode; raises ``UnknownName`` for one that is neither fitted nor scaled."""
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
        # An unseen network may be shorter than all that were seen: its floor is as much lower.
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
    """A new network's epochs over those of ``like`` in the same modes, as the geometric mean of the ratios.

    ``seen`` are one or a few epochs of the new network; raises ``BadInput`` for none.
    """
    if not seen:
        raise BadInput("scaling a network", "no epoch of it", "one epoch at least, or the ratio of the layers")
    said = fitted.predict(like, _modes_of_epochs(seen)).epoch_s
    ratio = float(np.exp(np.mean(np.log([one.epoch_s for one in seen] / said))))
    return ScaledNetwork(seen[0].network, like, ratio, "epochs")


def scale_by_layers(
    device: DeviceSpec, works: Mapping[str, tuple[Workload, int]], network: str, like: str
) -> ScaledNetwork:
    """A new network's epoch over that of ``like`` at the top clocks, as both are priced by their layers; estimated.

    ``works`` tells of each what a minibatch is (with ``layers``) and how many make an epoch.
    """

    def epoch_s(name: str) -> float:
        work, steps = works[name]
        cost = estimate_network_cost(device, work, load_catalogue())
        return steps * float(compute_step_s(cost.coefficients, device.maxn, stack_modes([device.maxn]))[0])

    return ScaledNetwork(network, like, epoch_s(network) / epoch_s(like), "layers")
