"""Boards as a run's measurements describe them: time and power of every mode, with spreads, and draws from them.

Symbols: m, s = mean and standard deviation of log time (or log power) of a mode after all measurements; g = a smooth
random function of the knobs with mean 0 and variance 1 over the modes; z = a standard normal number of the board. A
draw of the board is m + s (z + g) / sqrt(2): half of the variance is common to all modes, as that of a board's offset
is, and half varies smoothly between them, as that of a curve is. Measured modes have a small s, so draws agree there.
The z of K draws are a Latin hypercube sample: of K equally likely ranges, each holds one, so that a few draws cover the
range of z. It is independent between boards and between time and power.
p = idle power by mode before any measurement; a = idle power that the board reported in the mode in which it waits, and
in MAXN. The board's idle power is p exp(u + v log p), with u and v such that it is a in these two modes.

References:
    McKay, Beckman, Conover, "A comparison of three methods for selecting values of input variables in the analysis of
    output from a computer code", Technometrics 21 (1979), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fedge.client.answers import first_attempt
from fedge.client.client_setup import ClientSetup, plan_conditions
from fedge.client.corrections import to_reference
from fedge.client.emulated import load_client
from fedge.decisions.measured_correction import correct_with_measurements
from fedge.devices.board_kinds import mode_idle_power_w
from fedge.devices.mode_surface import draw_deviations, draw_smooth_residual
from fedge.experiment import Experiment, list_boards
from fedge.pareto import find_nearest_row
from fedge.types import Floats, Front, Measurement, PowerMode, Predictions, ProfileTable
from fedge.wire import ClientState, RequestMessage

SAME_IDLE_LOG = 1e-6
# Expected idle powers that are closer than this (log units) do not tell how idle power varies with the mode.

SMALLEST_SHARE = 1e-9
# Smallest share of a range, of which the normal quantile is finite.


@dataclass(frozen=True, slots=True, eq=False)
class BoardPosterior:
    """A board's time and power in the reference condition of ``fedge.client.prediction_requests``, after a run.

    Attributes:
        predictions: Time and power of every candidate mode, with spreads.
        idle_w: Power of the idle board in these modes, in watts.
    """

    name: str
    device: str
    batch_size: int
    predictions: Predictions
    idle_w: Floats


def fit_boards(
    experiment: Experiment,
    states: Mapping[str, ClientState],
    fronts: Mapping[str, Front],
    shared: Mapping[str, Sequence[Measurement]],
) -> tuple[BoardPosterior, ...]:
    """Fit the experiment's predictor to what the boards measured; boards that measured nothing are left out.

    ``shared`` has measurements of other boards of their kind.
    """
    return tuple(
        _fit_board(
            experiment,
            board.index,
            state=states[board.name],
            front=fronts[board.name],
            shared=shared.get(board.name, ()),
        )
        for board in list_boards(experiment)
        if board.name in states and board.name in fronts and states[board.name].measurements
    )


def _fit_board(
    experiment: Experiment, index: int, state: ClientState, front: Front, shared: Sequence[Measurement]
) -> BoardPosterior:
    setup = load_client(experiment, index).setup
    request = RequestMessage("train", policy=experiment.policy.name, state=state)
    conditions = plan_conditions(setup, request, first_attempt(setup, state))
    _, own = to_reference(conditions.corrections, state.measurements)
    _, others = to_reference(conditions.corrections, shared)
    fitted = setup.predictor.fit((*own, *others)).predict(setup.candidates)
    return BoardPosterior(
        setup.board.name,
        device=setup.board.entry.device,
        batch_size=setup.workload.batch_size,
        predictions=correct_with_measurements(fitted, own),
        idle_w=_scale_idle_power(setup, front, conditions.waiting_mode),
    )


def _scale_idle_power(setup: ClientSetup, front: Front, waiting_mode: PowerMode) -> Floats:
    expected_w = mode_idle_power_w(setup.spec, setup.workload, setup.candidates)
    log = np.log(expected_w)
    rows = [find_nearest_row(setup.candidates, mode) for mode in (waiting_mode, setup.fastest_mode)]
    errors = np.log([front.idle_w, front.maxn_idle_w]) - log[rows]
    apart = log[rows[1]] - log[rows[0]]
    slope = 0.0 if abs(apart) < SAME_IDLE_LOG else (errors[1] - errors[0]) / apart
    idle_w: Floats = np.exp(log + errors[0] + slope * (log - log[rows[0]]))
    return idle_w


def draw_offsets(draws: int, rng: np.random.Generator) -> Floats:
    """Draw a board's z of time and of power for every draw, shape (draws, 2)."""
    ranges = np.array([rng.permutation(draws) for _ in range(2)])
    shares = (ranges + rng.uniform(SMALLEST_SHARE, 1.0, ranges.shape)) / draws
    return np.array([[NormalDist().inv_cdf(share) for share in row] for row in shares.T])


def draw_table(board: BoardPosterior, offsets: Floats, rng: np.random.Generator) -> ProfileTable:
    """Draw time and power of all modes of the board from what is known of it, with its z of time and of power."""
    known, (time, power) = board.predictions, offsets
    return _build_table(
        board,
        time=_draw_error(known, known.step_s_sd_log, time, rng),
        power=_draw_error(known, known.power_w_sd_log, power, rng),
    )


def draw_sibling_table(board: BoardPosterior, rng: np.random.Generator) -> ProfileTable:
    """Draw time and power of another board of the same kind, which differs from ``board`` as two boards do."""
    known = board.predictions
    time, power = draw_deviations(2, rng)
    return _build_table(
        board,
        time=time + _draw_error(known, known.step_s_sd_log, rng.standard_normal(), rng),
        power=power + _draw_error(known, known.power_w_sd_log, rng.standard_normal(), rng),
    )


def sum_power_range_w(boards: Sequence[BoardPosterior]) -> tuple[float, float]:
    """Return the power of boards that all work in their mode of least power, and in that of most, in watts."""
    powers = [board.predictions.power_w for board in boards]
    return sum(float(power_w.min()) for power_w in powers), sum(float(power_w.max()) for power_w in powers)


def _draw_error(known: Predictions, sd_log: Floats, offset: float, rng: np.random.Generator) -> Floats:
    error: Floats = sd_log * (offset + draw_smooth_residual(known.modes, 1.0, rng)) / math.sqrt(2.0)
    return error


def _build_table(board: BoardPosterior, time: Floats, power: Floats) -> ProfileTable:
    """Build the board's table with errors of log time and log power, shape (n,); idle power has none."""
    return ProfileTable(
        board.device,
        workload=board.name,
        batch_size=board.batch_size,
        modes=board.predictions.modes,
        step_s=board.predictions.step_s * np.exp(time),
        power_w=board.predictions.power_w * np.exp(power),
        sha256="",
        path="",
        idle_w=board.idle_w,
    )
