"""What a board makes of what was measured: whom it believes, its predictions, the modes it knows, its front."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedge import pareto
from fedge.client.round_context import RoundContext
from fedge.client.step_accounting import mode_switch_s
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.types import Front, LinkUse, Measurement, PowerMode, Prediction, Predictions

KNOWN_MODE_SD_LOG = 0.05
"""A mode that another board tried counts as tried here too once its time and power are predicted this surely, log
units. Chosen by us: boards of one kind differ by about as much."""
PEER_DISAGREEMENT_LOG = 0.05
"""What other boards measured is left out when, with it, half of a board's own measurements lie this far off their
predictions, log units. Chosen by us: it is 0.01 where boards differ by a few percent, 0.5 where one is off by half."""


def select_consistent_peers(
    player: RoundContext, own: Sequence[Measurement], shared: Sequence[Measurement]
) -> tuple[Measurement, ...]:
    """``shared``; nothing of it when a fit that includes it misses what the board has measured itself.

    Then one of the others measures wrongly, or this board is not like them, and its own measurements look like outliers
    among theirs.
    """
    usual = [measurement for measurement in player.normalize(own) if not measurement.throttled]
    if not shared or not usual:
        return tuple(shared)
    predictions = fit_and_predict(player, own, shared)
    rows = {mode: nearest_prediction(predictions, mode) for mode in {measurement.mode for measurement in usual}}
    time = np.median([abs(np.log(rows[m.mode].step_s / m.step_s)) for m in usual])
    power = np.median([abs(np.log(rows[m.mode].power_w / m.power_w)) for m in usual])
    return () if max(time, power) > PEER_DISAGREEMENT_LOG else tuple(shared)


def fit_and_predict(player: RoundContext, own: Sequence[Measurement], shared: Sequence[Measurement]) -> Predictions:
    """The predictor's view of every candidate, its own modes not yet corrected by what was measured of them."""
    return player.predictor.fit([*own, *shared]).predict(player.candidates)


def build_offer(
    player: RoundContext, own: Sequence[Measurement], shared: Sequence[Measurement], steps: float, link: LinkUse
) -> tuple[Predictions, Front]:
    """The board's predictions and its front for ``steps`` minibatches' worth, from what is measured so far.

    Its own modes count as it measured them.
    """
    predictions = correct_with_measurements(fit_and_predict(player, own, shared), player.normalize(own))
    return predictions, build_front(player, predictions=predictions, own=own, steps=steps, link=link)


def build_front(
    player: RoundContext, predictions: Predictions, own: Sequence[Measurement], steps: float, link: LinkUse
) -> Front:
    """The board's front for ``steps`` minibatches' worth, from predictions that are made already."""
    idle_w, maxn_idle_w = (player.device.idle_w(mode) for mode in (player.waiting_mode, player.fastest_mode))
    link_s = link.down_s + link.up_s
    front = pareto.build_front(
        predictions,
        steps=steps,
        idle_w=idle_w,
        link_s=link_s,
        maxn=player.fastest_mode,
        maxn_idle_w=maxn_idle_w,
        power=player.includes_low_power,
    )
    return dataclasses.replace(front, switch_s=mode_switch_s(own))


def find_known_modes(
    predictions: Predictions, own: Sequence[Measurement], shared: Sequence[Measurement]
) -> frozenset[PowerMode]:
    """The modes that need no trial: the board's own, and those of other boards whose prediction is sure."""
    rows = ((mode, nearest_prediction(predictions, mode)) for mode in {measurement.mode for measurement in shared})
    sure = {mode for mode, row in rows if max(row.step_s_sd_log, row.power_w_sd_log) <= KNOWN_MODE_SD_LOG}
    return frozenset(measurement.mode for measurement in own) | sure


def nearest_prediction(predictions: Predictions, mode: PowerMode) -> Prediction:
    """What is predicted of ``mode``, from the row nearest to it."""
    i = pareto.find_nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        step_s=float(predictions.step_s[i]),
        power_w=float(predictions.power_w[i]),
        step_s_sd_log=float(predictions.step_s_sd_log[i]),
        power_w_sd_log=float(predictions.power_w_sd_log[i]),
    )
