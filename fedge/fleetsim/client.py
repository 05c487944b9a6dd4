"""An emulated client: a board with its state put back, its data, its predictor; answers one message at a time.

The same function serves Flower's actors and the in-process backend, so both write the same rows.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedge import pareto, rounds, workloads
from fedge.costs.layered import work_of
from fedge.devices.emulated import WARM_UP_STEPS, EmulatedBoard, thermal_of, top_mode
from fedge.devices.link import Link
from fedge.devices.truth import Surface, slower
from fedge.errors import FedgeError, OutOfMemory
from fedge.experiment import Board, Experiment, boards
from fedge.explorers import explorer_for
from fedge.fleetsim.boards import Kind, kind_of, knowledge_of, link_of, references_of, surface_of
from fedge.fleetsim.fitting import Guarded, board_means, true_peak_mb
from fedge.fleetsim.live import telling
from fedge.fleetsim.loading import Load, load_of, stalling
from fedge.fleetsim.serving import Attendance, Serving, believed_of, beside_it, best_beside, serving_of
from fedge.fleetsim.tracing import trace_of_round
from fedge.interfaces import LearningTask, Training
from fedge.policies import lowest_mode, policy_for, waiting_mode
from fedge.predictors import predictor_for
from fedge.rounds import fitting
from fedge.rounds.fitting import CarryingPredictor, Means, Try, at_scale
from fedge.rounds.loading import LoadingPredictor, with_loader
from fedge.rounds.serving import Duty, beside_service, duty_of, waiting_beside
from fedge.rounds.telling import TellingTraining, told_by
from fedge.seeds import derived_seed, generator
from fedge.telemetry.live import Progress
from fedge.telemetry.telling import Teller
from fedge.types import (
    Front,
    Goal,
    Measurement,
    MemoryUse,
    Modes,
    NamedArrays,
    PowerMode,
    Predictions,
    ProfileTable,
    Scale,
    TrainResult,
)
from fedge.wire import Answer, Ask
from fedge.workloads.partitions import split

logger = logging.getLogger(__name__)
SEATS = 256
"""How many boards a process keeps in memory (about 1 MB each); others are made anew when they are asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """What stays the same for one board over a run."""

    board: Board
    kind: Kind
    surface: Surface
    """The truth over every mode."""
    truth: Surface
    """The truth over the modes that may be chosen."""
    references: tuple[ProfileTable, ...]
    link: Link
    share: NDArray[np.int64]
    steps: int
    allowed: NDArray[np.bool_]
    """Which modes of ``surface`` those are."""
    serving: Serving | None = None
    """Its standing service, over every mode of ``surface``."""
    means: Means | None = None
    """What it has to train with; None where nobody knows what a minibatch needs."""
    scale: Scale | None = None
    """What it trains at where that is not what is asked for; ``surface``, ``truth`` and ``steps`` are of that."""
    load: Load | None = None
    """How its samples come, over every mode of ``surface``, which holds its stalls; None without a loader."""


def seat_of(experiment: Experiment, index: int) -> Seat:
    """The seat of board number ``index``; cached per process."""
    return _seated(experiment.model_dump_json(), index)


@lru_cache(maxsize=SEATS)
def _seated(experiment_json: str, index: int) -> Seat:
    experiment = Experiment.model_validate_json(experiment_json)
    return _seat(experiment, boards(experiment)[index], _shares(experiment_json)[index])


@lru_cache(maxsize=4)
def _shares(experiment_json: str) -> tuple[NDArray[np.int64], ...]:
    """Every board's training samples."""
    experiment = Experiment.model_validate_json(experiment_json)
    rng = generator(experiment.seed, "partition")
    return tuple(split(experiment.data, task_of(experiment).labels, len(boards(experiment)), rng))


def _seat(experiment: Experiment, board: Board, share: NDArray[np.int64]) -> Seat:
    kind = kind_of(board, experiment.workload)
    surface = surface_of(board, kind, experiment.seed)
    steps = rounds.steps_of(len(share), experiment.workload.batch_size, experiment.workload.local_epochs)
    allowed = rounds.choosable_with(surface.modes, kind.spec.presets.values())
    references = references_of(board, experiment.workload)
    link, serving = link_of(board.entry.link), serving_of(board, kind, experiment.seed)
    means = board_means(experiment, board, kind.spec, lambda: task_of(experiment))
    load = load_of(board, kind, surface, experiment)
    if load is not None:
        surface = load.surface
    truth = surface.where(allowed)
    return Seat(board, kind, surface, truth, references, link, share, steps, allowed, serving, means, load=load)


def _seat_at(seat: Seat, tried: Try | None) -> Seat:
    """The seat of a round at a try's scale, cached; the modes stay the very same."""
    scale = None if tried is None else fitting.mark_of(seat.means, tried.scale)
    if scale is None or seat.means is None or tried is None:
        return seat
    known = _AT_SCALE.get((seat, scale))
    if known is not None:
        return known
    ratio, steps = seat.means.ratio(scale), fitting.steps_at(seat.steps, seat.means.asked, scale)
    made = dataclasses.replace(
        seat, surface=slower(seat.surface, ratio), truth=slower(seat.truth, ratio), steps=steps, scale=scale
    )
    if seat.load is not None:
        made = _loaded_at(made, seat.load.at(scale.batch_size, ratio))
    if len(_AT_SCALE) >= SEATS:
        _AT_SCALE.pop(next(iter(_AT_SCALE)))
    _AT_SCALE[seat, scale] = made
    return made


def _loaded_at(seat: Seat, load: Load) -> Seat:
    """The seat of a scale with the stalls of that; the modes stay the very same."""
    truth = dataclasses.replace(load.surface.where(seat.allowed), modes=seat.truth.modes)
    return dataclasses.replace(seat, surface=load.surface, truth=truth, load=load)


@lru_cache(maxsize=4)
def _task(name: str, data_dir: str | None, download: bool) -> LearningTask:
    return workloads.load_task(name, data_dir=data_dir, download=download)


def task_of(experiment: Experiment) -> LearningTask:
    """The experiment's learning task; built once per process."""
    return _task(experiment.workload.task, experiment.data.dir, experiment.data.download)


def answer(
    experiment: Experiment,
    index: int,
    ask: Ask,
    arrays: NamedArrays | None,
    folder: Path | None = None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[Answer, TrainResult | None]:
    """What board number ``index`` says to ``ask``; an error on the board is an answer with ``error``.

    How far it is, it tells in the run's ``folder`` at the unix time ``wall_s``, without any effect on what it says.
    """
    name = boards(experiment)[index].name
    try:
        if ask.kind == "hello":
            return Answer(name), None
        seat = seat_of(experiment, index)
        if ask.kind == "front":
            return _front(experiment, seat, ask), None
        with telling(folder, Progress(name, 0.0, "fetching", round=ask.round, steps=seat.steps), wall_s) as teller:
            return _round(experiment, seat, ask, arrays or {}, teller)
    except Exception as error:
        logger.warning("%s failed in round %s", name, ask.round, exc_info=error)
        reason = str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"
        return Answer(name, error=reason), None


def _front(experiment: Experiment, seat: Seat, ask: Ask) -> Answer:
    tried = _first_try(seat, ask)
    seat = _seat_at(seat, tried)
    duty = _duty(experiment, seat, ask)
    player = _player(experiment, seat, ask, _board(experiment, seat, ask, duty), duty, tried)
    own = ask.state.measurements
    shared = rounds.believed(player, own, ask.shared)
    steps = seat.steps + rounds.warm_up_steps(own)
    _, front = rounds.offer(player, own, shared, steps, seat.link.transfer(ask.model_bytes))
    return Answer(seat.board.name, front=front, samples=len(seat.share))


def _first_try(seat: Seat, ask: Ask) -> Try | None:
    return None if seat.means is None else fitting.first_try(seat.means, ask.state)


def _round(
    experiment: Experiment, seat: Seat, ask: Ask, arrays: NamedArrays, teller: Teller
) -> tuple[Answer, TrainResult | None]:
    """A round at the first scale that does not run out of memory; an answer with ``error`` where all of them do.

    The front that it offers for the next round is of the scale which that one will be tried at.
    """
    tried, means = _first_try(seat, ask), seat.means
    while True:
        try:
            answer, trained = _round_at(experiment, _seat_at(seat, tried), ask, arrays, teller, tried)
        except OutOfMemory:
            assert tried is not None
            assert means is not None
            lost_s = _lost_s(_seat_at(seat, tried))
            following = fitting.next_try(means, tried, lost_s)
            if following is None:
                state = fitting.state_after_failure(means, tried, ask, lost_s)
                return Answer(seat.board.name, state=state, error=fitting.refusal(means, tried)), None
            tried = following
        else:
            if answer.state is not None and fitting.changes(means, tried, answer.state):
                later = _front(experiment, seat, dataclasses.replace(ask, state=answer.state))
                answer = dataclasses.replace(answer, front=later.front)
            return answer, trained


def _lost_s(seat: Seat) -> float:
    """What a try takes that runs out of memory: as long as its first minibatch in the fastest mode (estimated)."""
    return (1.0 + WARM_UP_STEPS) * float(seat.surface.step_s[seat.surface.row(top_mode(seat.surface))])


def _round_at(
    experiment: Experiment, seat: Seat, ask: Ask, arrays: NamedArrays, teller: Teller, tried: Try | None
) -> tuple[Answer, TrainResult]:
    duty = _duty(experiment, seat, ask)
    board = _board(experiment, seat, ask, duty)
    start_c = board.temperature_c
    player = _player(experiment, seat, ask, board, duty, tried)
    link = seat.link.transfer(ask.model_bytes)
    first = not ask.state.measurements
    truth = _truth(seat, duty)
    prior_apes = _apes(player.predictor.fit([]).predict(player.candidates), truth) if first else (None, None)
    goal = dataclasses.replace(ask.goal or Goal(ask.policy, seat.steps), steps=seat.steps)
    teller.say(device=seat.kind.spec.name)
    peak_mb = _peak_mb(experiment, seat, tried)
    training = TellingTraining(_training(experiment, seat, ask, arrays, tried, peak_mb), teller)
    telling_player = told_by(player, teller, seat.steps)
    played = rounds.play(telling_player, goal, ask.state.measurements, link, training, ask.shared)
    apes = _apes(played.predictions, truth)
    told = rounds.report_of(
        played,
        player,
        ask.round,
        link,
        asked_steps=seat.steps,
        samples=len(seat.share),
        temperature_c=board.temperature_c,
        memory=_memory(seat, tried, ask, peak_mb),
    )
    report = dataclasses.replace(
        told,
        true_front=true_front(seat, player, link.down_s + link.up_s),
        prior_time_ape=prior_apes[0],
        prior_power_ape=prior_apes[1],
        time_ape=apes[0],
        power_ape=apes[1],
    )
    trace = trace_of_round(report, player.waiting, board.thermal, start_c)
    learnt = None if tried is None or seat.means is None else fitting.learnt(seat.means, tried, peak_mb)
    state = rounds.state_after(ask, played, report, learnt)
    return Answer(seat.board.name, played.front, report, state, trace=trace), played.trained


def _training(
    experiment: Experiment, seat: Seat, ask: Ask, arrays: NamedArrays, tried: Try | None, peak_mb: float | None
) -> Training:
    scale = Scale(experiment.workload.batch_size) if tried is None else tried.scale
    options = fitting.options_at(experiment.workload, seat.steps, scale, ask.proximal_mu)
    seed = derived_seed(experiment.seed, seat.board.name, ask.round, "train")
    training = task_of(experiment).start(arrays, seat.share, seed, options)
    return training if seat.means is None or peak_mb is None else Guarded(training, peak_mb, seat.means.limit_mb)


def _peak_mb(experiment: Experiment, seat: Seat, tried: Try | None) -> float | None:
    """What a minibatch truly takes; None where nobody knows."""
    if tried is None or seat.means is None:
        return None
    return true_peak_mb(seat.means, tried.scale, seat.board.name, experiment.seed)


def _memory(seat: Seat, tried: Try | None, ask: Ask, peak_mb: float | None) -> MemoryUse | None:
    return None if tried is None or seat.means is None else fitting.use_of(seat.means, tried, ask.state, peak_mb)


def _board(experiment: Experiment, seat: Seat, ask: Ask, duty: Duty | None = None) -> EmulatedBoard:
    """The board as it stood when it last stopped working, rested until the round's start."""
    ambient_c = seat.board.entry.ambient_c
    temperature_c = ambient_c if ask.state.temperature_c is None else ask.state.temperature_c
    rng = generator(experiment.seed, seat.board.name, ask.round, "noise")
    service = None
    if seat.serving is not None and duty is not None:
        seed = derived_seed(experiment.seed, seat.board.name, ask.round, "requests")
        service = Attendance(seat.serving, duty, seat.surface, seed)
    thermal = thermal_of(seat.kind.spec, ambient_c)
    board = EmulatedBoard(seat.kind.spec, seat.surface, thermal, temperature_c, rng, service)
    board.rest(max(0.0, ask.start_s - ask.state.rested_at_s), _waiting(seat, ask, duty))
    return board


def _waiting(seat: Seat, ask: Ask, duty: Duty | None) -> PowerMode:
    if duty is None:
        return waiting_mode(ask.policy, seat.kind.spec, seat.truth.modes)
    return waiting_beside(duty, ask.policy, seat.kind.spec, seat.kind.average.idle_w[seat.allowed])


def _duty(experiment: Experiment, seat: Seat, ask: Ask) -> Duty | None:
    """What the board's service asks of it in this round; None without one."""
    if seat.serving is None:
        return None
    inner = _Remembering(seat, experiment.predictor, _rest_w(seat))
    believed = believed_of(seat.serving, seat.truth.modes, seat.allowed)
    pinned = waiting_mode(ask.policy, seat.kind.spec, seat.truth.modes)
    stay = (top_mode(seat.surface), *((pinned,) if ask.policy.startswith("preset:") else ()))
    return duty_of(believed, seat.serving.demand, inner, ask.state.measurements, stay)


def _rest_w(seat: Seat) -> float:
    """Watts at rest in the top mode, nothing served."""
    return float(seat.surface.idle_w[seat.surface.row(top_mode(seat.surface))])


def _truth(seat: Seat, duty: Duty | None) -> Surface:
    """The truth over the modes that may be chosen in this round, as it is beside the service."""
    if seat.serving is None or duty is None:
        return seat.truth
    return beside_it(seat.serving, duty, seat.surface, seat.allowed)


def _predicted(seat: Seat, predictor: str, idle_w: float, measurements: tuple[Measurement, ...]) -> Predictions:
    """The predictions of a seat after ``measurements``; the last ones are kept for each seat."""
    known = _LAST.get(seat)
    if known is not None and known[0] == (predictor, measurements):
        return known[1]
    learner = predictor_for(predictor, knowledge_of(seat.kind, seat.references, idle_w))
    if seat.means is not None:
        learner = CarryingPredictor(learner, seat.means, seat.scale)
    if seat.load is not None:
        learner = LoadingPredictor(learner, seat.load.believed)
    predictions = learner.fit(measurements).predict(seat.truth.modes)
    if len(_LAST) >= SEATS:
        _LAST.pop(next(iter(_LAST)))
    _LAST[seat] = (predictor, measurements), predictions
    return predictions


_AT_SCALE: dict[tuple[Seat, Scale], Seat] = {}
_LAST: dict[Seat, tuple[tuple[str, tuple[Measurement, ...]], Predictions]] = {}


class _Remembering:
    """A seat's predictor; a round begins with the very predictions that the board's last one ended with."""

    def __init__(self, seat: Seat, predictor: str, idle_w: float, duty: Duty | None = None) -> None:
        self._seat, self._predictor, self._idle_w, self._duty = seat, predictor, idle_w, duty
        self._measurements: tuple[Measurement, ...] = ()

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._measurements = tuple(measurements)
        return self

    def predict(self, modes: Modes) -> Predictions:
        duty = self._duty
        if modes is not (self._seat.truth.modes if duty is None else duty.working.modes):
            raise ValueError("a seat predicts its own modes only")
        every = _predicted(self._seat, self._predictor, self._idle_w, self._measurements)
        if duty is None:
            return every
        columns = (every.step_s, every.power_w, every.step_s_sd_log, every.power_w_sd_log)
        return Predictions(modes, *(column[duty.keep] for column in columns))


def _player(
    experiment: Experiment, seat: Seat, ask: Ask, board: EmulatedBoard, duty: Duty | None, tried: Try | None
) -> rounds.Player:
    maxn, idle_w = top_mode(seat.surface), _rest_w(seat)
    knowledge = knowledge_of(seat.kind, seat.references, idle_w)
    inner = _Remembering(seat, experiment.predictor, idle_w, duty)
    player = rounds.Player(
        seat.board.name,
        board,
        inner,
        policy_for(ask.policy),
        work_of(seat.board.entry, experiment.workload),
        seat.truth.modes,
        maxn,
        _waiting(seat, ask, duty),
        experiment.exploration,
        lambda modes: explorer_for(rounds.EXPLORER, modes, knowledge),
        ask.state.allowed_s,
        ask.policy == rounds.WATTS,
    )
    if seat.load is not None:
        player = with_loader(player, seat.load.believed, stalling(seat.load, board))
    beside = player if duty is None else beside_service(player, duty, inner)
    return beside if seat.means is None or tried is None else at_scale(beside, seat.means, tried, ask.state)


def true_front(seat: Seat, player: rounds.Player, link_s: float) -> Front:
    """The front that a planner knowing the board's noise-free truth would see; for the oracle's energy only.

    Every mode above the floor is open to it, also those that boards leave out to save themselves work; and whatever the
    policy does, it waits in the lowest; beside a service in those that hold it.
    """
    truth, idle_w = _best(seat)
    warm = (seat.steps + WARM_UP_STEPS) / seat.steps
    none = np.zeros(len(truth.modes))
    known = Predictions(truth.modes, truth.step_s * warm, truth.power_w, none, none)
    maxn_idle_w = player.device.idle_w(player.maxn)
    return pareto.offer(
        known, seat.steps, idle_w, link_s, player.maxn, maxn_idle_w=maxn_idle_w, limit=None, power=player.power
    )


def _best(seat: Seat) -> tuple[Surface, float]:
    """The true surface that is open to a planner who knows it, and the watts of waiting in its cheapest mode."""
    above = rounds.above_floor(seat.surface.modes)
    if seat.serving is not None:
        return best_beside(seat.serving, seat.surface, above)
    return seat.surface.where(above), float(seat.surface.idle_w[seat.surface.row(lowest_mode(seat.truth.modes))])


def _apes(predictions: Predictions, truth: Surface) -> tuple[float, float]:
    """Mean |predicted - true| / true of time and power over all modes that may be chosen."""
    time = np.abs(predictions.step_s - truth.step_s) / truth.step_s
    power = np.abs(predictions.power_w - truth.power_w) / truth.power_w
    return float(time.mean()), float(power.mean())
