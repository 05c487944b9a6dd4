"""Evidence from measurements: consistent peers and earlier runs, predictions, well known modes, the client's front."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge import pareto
from fedge.client.corrections import normalize
from fedge.client.prediction_requests import Asking, PredictionRequest
from fedge.client.round_state import RoundContext, mode_switch_s, warm_up_steps
from fedge.decisions.measured_correction import correct_with_measurements, find_rows
from fedge.experiment import ExplorationSpec
from fedge.groups import group_by
from fedge.pareto import MAX_FRONT_POINTS, find_nearest_row, find_offered_rows
from fedge.types import Front, LinkUse, Measurement, PowerMode, Prediction, Predictions, pick_median

KNOWN_MODE_SD_LOG = 0.05
# A peer's mode counts as known once time and power are predicted within this standard deviation (log units). Default:
# about the spread between boards of one kind; a smaller value probes more.
PEER_DISAGREEMENT_LOG = 0.05
# Peers are ignored if the median error of the fit over the board's own measurements exceeds this (log units). Default:
# the median error is about 0.01 if boards differ by a few percent, and 0.5 if one is off by half.

PROMISE_TOLERANCE = 1.02
# An untried mode is offered if it promises to be faster by no more than this factor: measurements of one mode vary as
# much, and a plan that counts on it is late by no more.

ONE_TIME_ERROR_LOG = 0.45
# Error of one step time that another process does not explain (log units): emulated outliers reach log 1.5. Only a
# single measurement is held against it; of several, the usual one decides.
CONTRADICTION_SD = 2.0
# Measurements within this many standard deviations contradict nothing: a probe of one step is 3 % off. Default; a
# smaller value drops good knowledge more often, a larger one keeps bad knowledge longer.


def select_recalled(
    context: RoundContext, own_measurements: Sequence[Measurement], recalled: Sequence[Measurement]
) -> Asking[tuple[Measurement, ...]]:
    """Return ``recalled``, or nothing if what the board measures now contradicts it.

    That happens if the knowledge is another workload's, or the board or its software has changed.
    """
    if not context.learns or not recalled:
        return ()
    usual = [one for one in normalize(context.corrections, own_measurements) if not one.throttled]
    if not usual:
        return tuple(recalled)
    errors = yield from _compare_with_recalled(context, usual, recalled)
    return () if _are_contradicted(errors) else tuple(recalled)


@dataclass(frozen=True, slots=True)
class _RecallError:
    """How far a measurement is from what was recalled, log units; the ratios are to what chance explains."""

    time_log: float
    time_ratio: float
    power_ratio: float


def _compare_with_recalled(
    context: RoundContext, usual: Sequence[Measurement], recalled: Sequence[Measurement]
) -> Asking[list[_RecallError]]:
    """Compare measurements with those of the same mode in earlier runs, or all with predictions if there are none."""
    before = group_by(normalize(context.corrections, recalled), lambda one: one.mode)
    again = [one for one in usual if one.mode in before]
    if again:  # the same mode then and now tells more than a prediction, and needs no fit
        middles = {mode: pick_median(of_mode) for mode, of_mode in before.items()}
        return [
            _recall_error(now, then.step_s, then.power_w, time_sd_log=then.time_se_log, power_sd_log=then.power_se_log)
            for now in again
            for then in [middles[now.mode]]
        ]
    predictions = yield from fit_and_predict(context, recalled, ())
    return [
        _recall_error(now, one.step_s, one.power_w, time_sd_log=one.step_s_sd_log, power_sd_log=one.power_w_sd_log)
        for now in usual
        for one in [nearest_prediction(predictions, now.mode)]
    ]


def _recall_error(
    now: Measurement, step_s: float, power_w: float, time_sd_log: float, power_sd_log: float
) -> _RecallError:
    time_log, power_log = abs(math.log(step_s / now.step_s)), abs(math.log(power_w / now.power_w))
    time_limit = max(PEER_DISAGREEMENT_LOG, CONTRADICTION_SD * math.hypot(time_sd_log, now.time_se_log))
    power_limit = max(PEER_DISAGREEMENT_LOG, CONTRADICTION_SD * math.hypot(power_sd_log, now.power_se_log))
    return _RecallError(time_log, time_log / time_limit, power_log / power_limit)


def _are_contradicted(errors: Sequence[_RecallError]) -> bool:
    """Return whether the errors are too large for outliers; another process slows steps but adds few watts."""
    if len(errors) == 1:
        error = errors[0]
        return min(error.time_ratio, error.power_ratio) > 1.0 or error.time_log > ONE_TIME_ERROR_LOG
    ratios = [error.time_ratio for error in errors], [error.power_ratio for error in errors]
    return max(map(statistics.median_low, ratios)) > 1.0


def select_consistent_peers(
    context: RoundContext, own_measurements: Sequence[Measurement], peer_measurements: Sequence[Measurement]
) -> Asking[tuple[Measurement, ...]]:
    """Return ``peer_measurements``, or nothing if a fit that includes it contradicts the board's own measurements.

    A contradiction means that a peer measures wrongly or that this board differs from its kind; its own measurements
    would then be treated as outliers.
    """
    if not context.learns:
        return ()
    usual = [one for one in normalize(context.corrections, own_measurements) if not one.throttled]
    if not peer_measurements or not usual:
        return tuple(peer_measurements)
    predictions = yield from fit_and_predict(context, own_measurements, peer_measurements)
    rows = {mode: nearest_prediction(predictions, mode) for mode in {measurement.mode for measurement in usual}}
    time = statistics.median(abs(math.log(rows[m.mode].step_s / m.step_s)) for m in usual)
    power = statistics.median(abs(math.log(rows[m.mode].power_w / m.power_w)) for m in usual)
    return () if max(time, power) > PEER_DISAGREEMENT_LOG else tuple(peer_measurements)


def fit_and_predict(
    context: RoundContext,
    own_measurements: Sequence[Measurement],
    peer_measurements: Sequence[Measurement],
    choose_rows: Callable[[Predictions], NDArray[np.intp]] | None = None,
) -> Asking[Predictions]:
    """Fit the predictor to all measurements and predict every candidate, without correcting measured modes.

    Where the mode is pinned, the board's first measurement suffices: all others are of the same mode.

    Args:
        choose_rows: Returns the rows whose spreads are needed, as in ``PredictionRequest``; None for all rows.
    """
    measurements = (*own_measurements, *peer_measurements) if context.learns else tuple(own_measurements[:1])
    return (
        yield PredictionRequest(
            context.predictor, context.corrections, context.candidates, measurements, choose_rows=choose_rows
        )
    )


def build_offer(
    context: RoundContext,
    own_measurements: Sequence[Measurement],
    peer_measurements: Sequence[Measurement],
    steps: float,
    link: LinkUse,
    *,
    used_again: bool,
) -> Asking[Front]:
    """Build the front from the measurements so far; modes that the board measured are corrected by them.

    A front needs the spreads of its own modes and of the measured ones only. It leaves out untried modes that promise
    to be faster than every measured one: the board would not choose them, and a plan that counts on them leaves no time
    to try them.

    Args:
        steps: Steps of the share, including warm-up in units of steps.
        used_again: Whether the next round may come with the same measurements, so that its predictions of all modes are
            made now.
    """
    own = normalize(context.corrections, own_measurements)
    peer_modes = {measurement.mode for measurement in peer_measurements}

    def choose_rows(means: Predictions) -> NDArray[np.intp]:
        measured = np.array(list(find_rows(means.modes, {m.mode for m in own}).values()), dtype=np.intp)
        promises = _mask_untried_promises(context, means, own)
        # Corrected, a measured mode may be off the front and uncover others.
        unmeasured = ~promises
        unmeasured[measured] = False
        others = np.flatnonzero(unmeasured)
        front = find_offered_rows(
            steps * means.step_s[others],
            power_w=means.power_w[others],
            idle_w=context.device.idle_w(context.waiting_mode),
            limit=None,
            power=context.includes_low_power,
        )
        top = find_nearest_row(means.modes, context.fastest_mode)
        tried = [row for row in find_rows(means.modes, peer_modes).values() if promises[row]] if promises.any() else []
        return np.unique(np.concatenate([others[front], measured, np.array([top, *tried], dtype=np.intp)]))

    fitted = yield from fit_and_predict(
        context, own_measurements, peer_measurements, None if used_again else choose_rows
    )
    predictions = correct_with_measurements(fitted, own)
    promises = _mask_untried_promises(context, fitted, own)
    if promises.any():
        promises[list(find_rows(predictions.modes, find_sure_modes(predictions, peer_modes)).values())] = False
        predictions = dataclasses.replace(predictions, step_s=np.where(promises, np.inf, predictions.step_s))
    return build_front(context, predictions=predictions, own_measurements=own_measurements, steps=steps, link=link)


def _mask_untried_promises(context: RoundContext, means: Predictions, own: Sequence[Measurement]) -> NDArray[np.bool_]:
    """Mask the modes that the board did not measure and that are predicted to be clearly faster than all that it did.

    None is masked if the board may use untried modes: as long as it did not measure its fastest one, under a limit on
    power, or by its exploration.
    """
    measured = group_by(own, lambda one: one.mode)
    rows = find_rows(means.modes, measured)
    if context.fastest_mode not in rows or context.includes_low_power or not keeps_to_known_modes(context.exploration):
        return np.zeros(len(means.modes), dtype=np.bool_)
    fastest_s = min(max(float(means.step_s[row]), pick_median(measured[mode]).step_s) for mode, row in rows.items())
    promises = means.step_s < fastest_s / PROMISE_TOLERANCE
    promises[list(rows.values())] = False
    return promises


def keeps_to_known_modes(exploration: ExplorationSpec) -> bool:
    """Return whether a board that knows its fastest mode uses only modes that were tried."""
    return exploration.modes is not None and exploration.share > 0 and exploration.probes > 0


def build_front(
    context: RoundContext,
    predictions: Predictions,
    own_measurements: Sequence[Measurement],
    steps: float,
    link: LinkUse,
    *,
    limit: int = MAX_FRONT_POINTS,
) -> Front:
    """Build the front for ``steps`` steps (including warm-up) from existing predictions."""
    idle_w, maxn_idle_w = (context.device.idle_w(mode) for mode in (context.waiting_mode, context.fastest_mode))
    front = pareto.build_front(
        predictions,
        steps=steps,
        idle_w=idle_w,
        link_s=0.0,  # set below, with the rest of the link
        maxn=context.fastest_mode,
        maxn_idle_w=maxn_idle_w,
        limit=limit,
        power=context.includes_low_power,
    )
    return dataclasses.replace(
        set_link(front, link),
        switch_s=mode_switch_s(own_measurements),
        fixed_share=min(1.0, warm_up_steps(own_measurements) / steps),
    )


def set_link(front: Front, link: LinkUse) -> Front:
    """Return the front of a round with other transfers."""
    return dataclasses.replace(
        front,
        link_s=link.down_s + link.up_s,
        radio_j=link.radio_j,
        up_s=link.up_s,
        latency_s=link.latency_s,
        up_share=link.up_share,
        encode_s=link.encode_s,
        encode_j=link.encode_j,
    )


def find_known_modes(
    predictions: Predictions, own_measurements: Sequence[Measurement], peer_measurements: Sequence[Measurement]
) -> frozenset[PowerMode]:
    """Return the modes that need no probe: those the board measured, and those of peers with a reliable prediction."""
    own = frozenset(measurement.mode for measurement in own_measurements)
    return own | find_sure_modes(predictions, {measurement.mode for measurement in peer_measurements})


def find_sure_modes(predictions: Predictions, modes: Iterable[PowerMode]) -> frozenset[PowerMode]:
    """Return those of ``modes`` whose time and power are predicted within ``KNOWN_MODE_SD_LOG``."""
    named = list(modes)
    rows = np.array([find_nearest_row(predictions.modes, mode) for mode in named], dtype=np.intp)
    sure = np.maximum(predictions.step_s_sd_log[rows], predictions.power_w_sd_log[rows]) <= KNOWN_MODE_SD_LOG
    return frozenset(mode for mode, known in zip(named, sure.tolist(), strict=True) if known)


def nearest_prediction(predictions: Predictions, mode: PowerMode) -> Prediction:
    """Return the prediction of ``mode`` from the nearest row."""
    i = find_nearest_row(predictions.modes, mode)
    return Prediction(
        mode,
        step_s=float(predictions.step_s[i]),
        power_w=float(predictions.power_w[i]),
        step_s_sd_log=float(predictions.step_s_sd_log[i]),
        power_w_sd_log=float(predictions.power_w_sd_log[i]),
    )
