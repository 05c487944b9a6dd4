"""What a board makes of what was measured: whom it believes, its predictions, the modes it knows, its front."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedge import pareto
from fedge.choice.measured import with_measured
from fedge.rounds.player import Player
from fedge.rounds.work import switch_s
from fedge.types import Front, LinkUse, Measurement, PowerMode, Prediction, Predictions

SURE_SD_LOG = 0.05
"""A mode that another board tried counts as tried here too once its time and power are predicted this surely, log
units. Chosen by us: boards of one kind differ by about as much."""
DOUBT_LOG = 0.05
"""What other boards measured is left out when, with it, half of a board's own measurements lie this far off their
predictions, log units. Chosen by us: it is 0.01 where boards differ by a few percent, 0.5 where one is off by half."""


def believed(player: Player, own: Sequence[Measurement], shared: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """``shared``; nothing of it when a fit that includes it misses what the board has measured itself.

    Then one of the others measures wrongly, or this board is not like them, and its own measurements look like outliers
    among theirs.
    """
    usual = [measurement for measurement in player.usual(own) if not measurement.throttled]
    if not shared or not usual:
        return tuple(shared)
    predictions = fitted(player, own, shared)
    rows = {mode: prediction_of(predictions, mode) for mode in {measurement.mode for measurement in usual}}
    time = np.median([abs(np.log(rows[m.mode].step_s / m.step_s)) for m in usual])
    power = np.median([abs(np.log(rows[m.mode].power_w / m.power_w)) for m in usual])
    return () if max(time, power) > DOUBT_LOG else tuple(shared)


def fitted(player: Player, own: Sequence[Measurement], shared: Sequence[Measurement]) -> Predictions:
    """The predictor's view of every candidate, its own modes not yet corrected by what was measured of them."""
    return player.predictor.fit([*own, *shared]).predict(player.candidates)


def offer(
    player: Player, own: Sequence[Measurement], shared: Sequence[Measurement], steps: float, link: LinkUse
) -> tuple[Predictions, Front]:
    """The board's predictions and its front for ``steps`` minibatches' worth, from what is measured so far.

    Its own modes count as it measured them.
    """
    predictions = with_measured(fitted(player, own, shared), player.usual(own))
    return predictions, front_of(player, predictions, own, steps, link)


def front_of(
    player: Player, predictions: Predictions, own: Sequence[Measurement], steps: float, link: LinkUse
) -> Front:
    """The board's front for ``steps`` minibatches' worth, from predictions that are made already."""
    idle_w, maxn_idle_w = (player.device.idle_w(mode) for mode in (player.waiting, player.maxn))
    link_s = link.down_s + link.up_s
    front = pareto.offer(predictions, steps, idle_w, link_s, player.maxn, maxn_idle_w=maxn_idle_w, power=player.power)
    return dataclasses.replace(front, switch_s=switch_s(own))


def known_modes(
    predictions: Predictions, own: Sequence[Measurement], shared: Sequence[Measurement]
) -> frozenset[PowerMode]:
    """The modes that need no trial: the board's own, and those of other boards whose prediction is sure."""
    rows = ((mode, prediction_of(predictions, mode)) for mode in {measurement.mode for measurement in shared})
    sure = {mode for mode, row in rows if max(row.step_s_sd_log, row.power_w_sd_log) <= SURE_SD_LOG}
    return frozenset(measurement.mode for measurement in own) | sure


def prediction_of(predictions: Predictions, mode: PowerMode) -> Prediction:
    """What is predicted of ``mode``, from the row nearest to it."""
    i = pareto.nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        float(predictions.step_s[i]),
        float(predictions.power_w[i]),
        float(predictions.step_s_sd_log[i]),
        float(predictions.power_w_sd_log[i]),
    )
