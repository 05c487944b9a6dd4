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

from fedge import pareto, workloads
from fedge.client import memory_scaling
from fedge.client.emulated_loader import EmulatedLoader, build_loader, wrap_with_stalls
from fedge.client.emulated_memory import MemoryLimitedTraining, build_board_scaling, true_peak_mb
from fedge.client.emulated_service import (
    EmulatedService,
    ServiceSimulation,
    build_service,
    compute_best_served_surface,
    compute_served_surface,
    expected_inference_costs,
)
from fedge.client.evidence import build_offer, select_consistent_peers
from fedge.client.inference_service import RoundService, attach_service, choose_serving_wait_mode, plan_round_service
from fedge.client.loader_stalls import LoaderPredictor, attach_loader
from fedge.client.memory_scaling import RescalingPredictor, ScaleAttempt, ScalingContext, apply_scale
from fedge.client.progress import ProgressTraining, attach_progress, open_emulated_reporter
from fedge.client.round import run_round
from fedge.client.round_context import POWER_PLANNING_POLICY, PROBE_EXPLORER, RoundContext
from fedge.client.round_report import build_report, next_board_state
from fedge.client.round_trace import build_emulated_trace
from fedge.client.step_accounting import count_steps, warm_up_steps
from fedge.costs.layered_work import build_workload
from fedge.decisions.candidate_modes import mask_above_floor, mask_candidates_and_presets
from fedge.decisions.policies import choose_waiting_mode, find_lowest_mode, load_policy
from fedge.devices.board_kinds import BoardKind, build_kind, build_knowledge, build_link, build_surface, load_references
from fedge.devices.emulated_board import WARM_UP_STEPS, EmulatedBoard, build_thermal_model, find_top_mode
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.devices.network_link import NetworkLink
from fedge.errors import FedgeError, OutOfMemory
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.predictors import load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.protocols import LearningTask, Training
from fedge.seeds import derive_seed, make_generator
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_reporter import ProgressReporter
from fedge.types import (
    Front,
    Measurement,
    MemoryUse,
    Modes,
    NamedArrays,
    PowerMode,
    Predictions,
    ProfileTable,
    RoundGoal,
    TrainingScale,
    TrainResult,
)
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads.partitions import split_samples

logger = logging.getLogger(__name__)
MAX_CACHED_CLIENTS = 256
"""How many boards a process keeps in memory (about 1 MB each); others are made anew when they are asked."""


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedClient:
    """What stays the same for one board over a run."""

    board: FleetBoard
    kind: BoardKind
    surface: ModeSurface
    """The truth over every mode."""
    truth: ModeSurface
    """The truth over the modes that may be chosen."""
    references: tuple[ProfileTable, ...]
    link: NetworkLink
    share: NDArray[np.int64]
    steps: int
    candidate_mask: NDArray[np.bool_]
    """Which modes of ``surface`` those are."""
    serving: EmulatedService | None = None
    """Its standing service, over every mode of ``surface``."""
    scaling: ScalingContext | None = None
    """What it has to train with; None where nobody knows what a minibatch needs."""
    scale: TrainingScale | None = None
    """What it trains at where that is not what is asked for; ``surface``, ``truth`` and ``steps`` are of that."""
    loader: EmulatedLoader | None = None
    """How its samples come, over every mode of ``surface``, which holds its stalls; None without a loader."""


def load_client(experiment: Experiment, index: int) -> EmulatedClient:
    """The seat of board number ``index``; cached per process."""
    return _cached_client(experiment.model_dump_json(), index)


@lru_cache(maxsize=MAX_CACHED_CLIENTS)
def _cached_client(experiment_json: str, index: int) -> EmulatedClient:
    experiment = Experiment.model_validate_json(experiment_json)
    return _build_client(experiment, list_boards(experiment)[index], _partition_samples(experiment_json)[index])


@lru_cache(maxsize=4)
def _partition_samples(experiment_json: str) -> tuple[NDArray[np.int64], ...]:
    """Every board's training samples."""
    experiment = Experiment.model_validate_json(experiment_json)
    rng = make_generator(experiment.seed, "partition")
    return tuple(
        split_samples(experiment.data, load_experiment_task(experiment).labels, len(list_boards(experiment)), rng)
    )


def _build_client(experiment: Experiment, board: FleetBoard, share: NDArray[np.int64]) -> EmulatedClient:
    kind = build_kind(board, experiment.workload)
    surface = build_surface(board, kind, experiment.seed)
    steps = count_steps(len(share), experiment.workload.batch_size, experiment.workload.local_epochs)
    allowed = mask_candidates_and_presets(surface.modes, kind.spec.presets.values())
    references = load_references(board, experiment.workload)
    link, serving = build_link(board.entry.link), build_service(board, kind, experiment.seed)
    means = build_board_scaling(experiment, board, kind.spec, lambda: load_experiment_task(experiment))
    load = build_loader(board, kind, surface, experiment)
    if load is not None:
        surface = load.surface
    truth = surface.select_rows(allowed)
    return EmulatedClient(
        board,
        kind=kind,
        surface=surface,
        truth=truth,
        references=references,
        link=link,
        share=share,
        steps=steps,
        candidate_mask=allowed,
        serving=serving,
        scaling=means,
        loader=load,
    )


def _client_at_scale(seat: EmulatedClient, tried: ScaleAttempt | None) -> EmulatedClient:
    """The seat of a round at a try's scale, cached; the modes stay the very same."""
    scale = None if tried is None else memory_scaling.measurement_scale(seat.scaling, tried.scale)
    if scale is None or seat.scaling is None or tried is None:
        return seat
    known = _CLIENTS_AT_SCALE.get((seat, scale))
    if known is not None:
        return known
    ratio, steps = (
        seat.scaling.step_time_ratio(scale),
        memory_scaling.count_steps_at(seat.steps, seat.scaling.asked, scale),
    )
    made = dataclasses.replace(
        seat,
        surface=scale_step_time(seat.surface, ratio),
        truth=scale_step_time(seat.truth, ratio),
        steps=steps,
        scale=scale,
    )
    if seat.loader is not None:
        made = _apply_loader(made, seat.loader.at_scale(scale.batch_size, ratio))
    if len(_CLIENTS_AT_SCALE) >= MAX_CACHED_CLIENTS:
        _CLIENTS_AT_SCALE.pop(next(iter(_CLIENTS_AT_SCALE)))
    _CLIENTS_AT_SCALE[seat, scale] = made
    return made


def _apply_loader(seat: EmulatedClient, load: EmulatedLoader) -> EmulatedClient:
    """The seat of a scale with the stalls of that; the modes stay the very same."""
    truth = dataclasses.replace(load.surface.select_rows(seat.candidate_mask), modes=seat.truth.modes)
    return dataclasses.replace(seat, surface=load.surface, truth=truth, loader=load)


@lru_cache(maxsize=4)
def _cached_task(name: str, data_dir: str | None, download: bool) -> LearningTask:
    return workloads.load_task(name, data_dir=data_dir, download=download)


def load_experiment_task(experiment: Experiment) -> LearningTask:
    """The experiment's learning task; built once per process."""
    return _cached_task(experiment.workload.task, experiment.data.dir, experiment.data.download)


def answer_request(
    experiment: Experiment,
    index: int,
    ask: RequestMessage,
    arrays: NamedArrays | None,
    folder: Path | None = None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[ReplyMessage, TrainResult | None]:
    """What board number ``index`` says to ``ask``; an error on the board is an answer with ``error``.

    How far it is, it tells in the run's ``folder`` at the unix time ``wall_s``, without any effect on what it says.
    """
    name = list_boards(experiment)[index].name
    try:
        if ask.kind == "hello":
            return ReplyMessage(name), None
        seat = load_client(experiment, index)
        if ask.kind == "front":
            return _answer_front(experiment, seat, ask), None
        with open_emulated_reporter(
            folder, BoardProgress(name, 0.0, "fetching", round=ask.round, steps=seat.steps), wall_s
        ) as teller:
            return _answer_round(experiment, seat=seat, ask=ask, arrays=arrays or {}, teller=teller)
    except Exception as error:
        logger.warning("%s failed in round %s", name, ask.round, exc_info=error)
        reason = str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"
        return ReplyMessage(name, error=reason), None


def _answer_front(experiment: Experiment, seat: EmulatedClient, ask: RequestMessage) -> ReplyMessage:
    tried = _first_attempt(seat, ask)
    seat = _client_at_scale(seat, tried)
    duty = _plan_service(experiment, seat, ask)
    player = _build_context(
        experiment, seat=seat, ask=ask, board=_build_board(experiment, seat, ask, duty), duty=duty, tried=tried
    )
    own = ask.state.measurements
    shared = select_consistent_peers(player, own, ask.shared)
    steps = seat.steps + warm_up_steps(own)
    _, front = build_offer(player, own=own, shared=shared, steps=steps, link=seat.link.transfer(ask.model_bytes))
    return ReplyMessage(seat.board.name, front=front, samples=len(seat.share))


def _first_attempt(seat: EmulatedClient, ask: RequestMessage) -> ScaleAttempt | None:
    return None if seat.scaling is None else memory_scaling.choose_first_attempt(seat.scaling, ask.state)


def _answer_round(
    experiment: Experiment, seat: EmulatedClient, ask: RequestMessage, arrays: NamedArrays, teller: ProgressReporter
) -> tuple[ReplyMessage, TrainResult | None]:
    """A round at the first scale that does not run out of memory; an answer with ``error`` where all of them do.

    The front that it offers for the next round is of the scale which that one will be tried at.
    """
    tried, means = _first_attempt(seat, ask), seat.scaling
    while True:
        try:
            answer, trained = _run_round_at(
                experiment, seat=_client_at_scale(seat, tried), ask=ask, arrays=arrays, teller=teller, tried=tried
            )
        except OutOfMemory:
            assert tried is not None
            assert means is not None
            lost_s = _failed_attempt_s(_client_at_scale(seat, tried))
            following = memory_scaling.choose_next_attempt(means, tried, lost_s)
            if following is None:
                state = memory_scaling.build_failed_state(means, tried, ask, lost_s)
                return ReplyMessage(
                    seat.board.name, state=state, error=memory_scaling.explain_out_of_memory(means, tried)
                ), None
            tried = following
        else:
            if answer.state is not None and memory_scaling.will_change_scale(means, tried, answer.state):
                later = _answer_front(experiment, seat, dataclasses.replace(ask, state=answer.state))
                answer = dataclasses.replace(answer, front=later.front)
            return answer, trained


def _failed_attempt_s(seat: EmulatedClient) -> float:
    """What a try takes that runs out of memory: as long as its first minibatch in the fastest mode (estimated)."""
    return (1.0 + WARM_UP_STEPS) * float(seat.surface.step_s[seat.surface.find_row(find_top_mode(seat.surface))])


def _run_round_at(
    experiment: Experiment,
    seat: EmulatedClient,
    ask: RequestMessage,
    arrays: NamedArrays,
    teller: ProgressReporter,
    tried: ScaleAttempt | None,
) -> tuple[ReplyMessage, TrainResult]:
    duty = _plan_service(experiment, seat, ask)
    board = _build_board(experiment, seat, ask, duty)
    start_c = board.temperature_c
    player = _build_context(experiment, seat=seat, ask=ask, board=board, duty=duty, tried=tried)
    link = seat.link.transfer(ask.model_bytes)
    first = not ask.state.measurements
    truth = _truth_surface(seat, duty)
    prior_apes = _mean_errors(player.predictor.fit([]).predict(player.candidates), truth) if first else (None, None)
    goal = dataclasses.replace(ask.goal or RoundGoal(ask.policy, seat.steps), steps=seat.steps)
    teller.report(device=seat.kind.spec.name)
    peak_mb = _round_peak_mb(experiment, seat, tried)
    training = ProgressTraining(
        _start_training(experiment, seat=seat, ask=ask, arrays=arrays, tried=tried, peak_mb=peak_mb), teller
    )
    telling_player = attach_progress(player, teller, seat.steps)
    played = run_round(
        telling_player, goal=goal, measurements=ask.state.measurements, link=link, training=training, shared=ask.shared
    )
    apes = _mean_errors(played.predictions, truth)
    told = build_report(
        played,
        player,
        ask.round,
        link,
        asked_steps=seat.steps,
        samples=len(seat.share),
        temperature_c=board.temperature_c,
        memory=_memory_use(seat, tried, ask, peak_mb),
    )
    report = dataclasses.replace(
        told,
        true_front=true_front(seat, player, link.down_s + link.up_s),
        prior_time_ape=prior_apes[0],
        prior_power_ape=prior_apes[1],
        time_ape=apes[0],
        power_ape=apes[1],
    )
    trace = build_emulated_trace(report, player.waiting_mode, board.thermal, start_c)
    learnt = (
        None
        if tried is None or seat.scaling is None
        else memory_scaling.update_memory_history(seat.scaling, tried, peak_mb)
    )
    state = next_board_state(ask, played, report, learnt)
    return ReplyMessage(seat.board.name, played.front, report, state, trace=trace), played.trained


def _start_training(
    experiment: Experiment,
    seat: EmulatedClient,
    ask: RequestMessage,
    arrays: NamedArrays,
    tried: ScaleAttempt | None,
    peak_mb: float | None,
) -> Training:
    scale = TrainingScale(experiment.workload.batch_size) if tried is None else tried.scale
    options = memory_scaling.build_train_options(experiment.workload, seat.steps, scale, ask.proximal_mu)
    seed = derive_seed(experiment.seed, seat.board.name, ask.round, "train")
    training = load_experiment_task(experiment).start(arrays, seat.share, seed, options)
    return (
        training
        if seat.scaling is None or peak_mb is None
        else MemoryLimitedTraining(training, peak_mb, seat.scaling.limit_mb)
    )


def _round_peak_mb(experiment: Experiment, seat: EmulatedClient, tried: ScaleAttempt | None) -> float | None:
    """What a minibatch truly takes; None where nobody knows."""
    if tried is None or seat.scaling is None:
        return None
    return true_peak_mb(seat.scaling, tried.scale, seat.board.name, experiment.seed)


def _memory_use(
    seat: EmulatedClient, tried: ScaleAttempt | None, ask: RequestMessage, peak_mb: float | None
) -> MemoryUse | None:
    return (
        None
        if tried is None or seat.scaling is None
        else memory_scaling.summarize_memory_use(seat.scaling, tried, ask.state, peak_mb)
    )


def _build_board(
    experiment: Experiment, seat: EmulatedClient, ask: RequestMessage, duty: RoundService | None = None
) -> EmulatedBoard:
    """The board as it stood when it last stopped working, rested until the round's start."""
    ambient_c = seat.board.entry.ambient_c
    temperature_c = ambient_c if ask.state.temperature_c is None else ask.state.temperature_c
    rng = make_generator(experiment.seed, seat.board.name, ask.round, "noise")
    service = None
    if seat.serving is not None and duty is not None:
        seed = derive_seed(experiment.seed, seat.board.name, ask.round, "requests")
        service = ServiceSimulation(seat.serving, duty, seat.surface, seed)
    thermal = build_thermal_model(seat.kind.spec, ambient_c)
    board = EmulatedBoard(
        seat.kind.spec, surface=seat.surface, thermal=thermal, temperature_c=temperature_c, rng=rng, beside=service
    )
    board.idle_for(max(0.0, ask.start_s - ask.state.rested_at_s), _choose_waiting_mode(seat, ask, duty))
    return board


def _choose_waiting_mode(seat: EmulatedClient, ask: RequestMessage, duty: RoundService | None) -> PowerMode:
    if duty is None:
        return choose_waiting_mode(ask.policy, seat.kind.spec, seat.truth.modes)
    return choose_serving_wait_mode(duty, ask.policy, seat.kind.spec, seat.kind.average.idle_w[seat.candidate_mask])


def _plan_service(experiment: Experiment, seat: EmulatedClient, ask: RequestMessage) -> RoundService | None:
    """What the board's service asks of it in this round; None without one."""
    if seat.serving is None:
        return None
    inner = _CachedPredictor(seat, experiment.predictor, _idle_power_w(seat))
    believed = expected_inference_costs(seat.serving, seat.truth.modes, seat.candidate_mask)
    pinned = choose_waiting_mode(ask.policy, seat.kind.spec, seat.truth.modes)
    stay = (find_top_mode(seat.surface), *((pinned,) if ask.policy.startswith("preset:") else ()))
    return plan_round_service(believed, demand=seat.serving.demand, inner=inner, own=ask.state.measurements, stay=stay)


def _idle_power_w(seat: EmulatedClient) -> float:
    """Watts at rest in the top mode, nothing served."""
    return float(seat.surface.idle_w[seat.surface.find_row(find_top_mode(seat.surface))])


def _truth_surface(seat: EmulatedClient, duty: RoundService | None) -> ModeSurface:
    """The truth over the modes that may be chosen in this round, as it is beside the service."""
    if seat.serving is None or duty is None:
        return seat.truth
    return compute_served_surface(seat.serving, duty, seat.surface, seat.candidate_mask)


def _predict_cached(
    seat: EmulatedClient, predictor: str, idle_w: float, measurements: tuple[Measurement, ...]
) -> Predictions:
    """The predictions of a seat after ``measurements``; the last ones are kept for each seat."""
    known = _LAST_PREDICTIONS.get(seat)
    if known is not None and known[0] == (predictor, measurements):
        return known[1]
    learner = load_predictor(predictor, build_knowledge(seat.kind, seat.references, idle_w))
    if seat.scaling is not None:
        learner = RescalingPredictor(learner, seat.scaling, seat.scale)
    if seat.loader is not None:
        learner = LoaderPredictor(learner, seat.loader.expected)
    predictions = learner.fit(measurements).predict(seat.truth.modes)
    if len(_LAST_PREDICTIONS) >= MAX_CACHED_CLIENTS:
        _LAST_PREDICTIONS.pop(next(iter(_LAST_PREDICTIONS)))
    _LAST_PREDICTIONS[seat] = (predictor, measurements), predictions
    return predictions


_CLIENTS_AT_SCALE: dict[tuple[EmulatedClient, TrainingScale], EmulatedClient] = {}
_LAST_PREDICTIONS: dict[EmulatedClient, tuple[tuple[str, tuple[Measurement, ...]], Predictions]] = {}


class _CachedPredictor:
    """A seat's predictor; a round begins with the very predictions that the board's last one ended with."""

    def __init__(self, seat: EmulatedClient, predictor: str, idle_w: float, duty: RoundService | None = None) -> None:
        self._seat, self._predictor, self._idle_w, self._duty = seat, predictor, idle_w, duty
        self._measurements: tuple[Measurement, ...] = ()

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._measurements = tuple(measurements)
        return self

    def predict(self, modes: Modes) -> Predictions:
        duty = self._duty
        if modes is not (self._seat.truth.modes if duty is None else duty.while_training.modes):
            raise ValueError("a seat predicts its own modes only")
        every = _predict_cached(self._seat, self._predictor, self._idle_w, self._measurements)
        if duty is None:
            return every
        columns = (every.step_s, every.power_w, every.step_s_sd_log, every.power_w_sd_log)
        return Predictions(modes, *(column[duty.keep] for column in columns))


def _build_context(
    experiment: Experiment,
    seat: EmulatedClient,
    ask: RequestMessage,
    board: EmulatedBoard,
    duty: RoundService | None,
    tried: ScaleAttempt | None,
) -> RoundContext:
    maxn, idle_w = find_top_mode(seat.surface), _idle_power_w(seat)
    knowledge = build_knowledge(seat.kind, seat.references, idle_w)
    inner = _CachedPredictor(seat, experiment.predictor, idle_w, duty)
    player = RoundContext(
        seat.board.name,
        device=board,
        predictor=inner,
        policy=load_policy(ask.policy),
        workload=build_workload(seat.board.entry, experiment.workload),
        candidates=seat.truth.modes,
        fastest_mode=maxn,
        waiting_mode=_choose_waiting_mode(seat, ask, duty),
        exploration=experiment.exploration,
        make_explorer=lambda modes: load_explorer(PROBE_EXPLORER, modes, knowledge),
        step_budgets_s=ask.state.allowed_s,
        includes_low_power=ask.policy == POWER_PLANNING_POLICY,
    )
    if seat.loader is not None:
        player = attach_loader(player, seat.loader.expected, wrap_with_stalls(seat.loader, board))
    beside = player if duty is None else attach_service(player, duty, inner)
    return beside if seat.scaling is None or tried is None else apply_scale(beside, seat.scaling, tried, ask.state)


def true_front(seat: EmulatedClient, player: RoundContext, link_s: float) -> Front:
    """The front that a planner knowing the board's noise-free truth would see; for the oracle's energy only.

    Every mode above the floor is open to it, also those that boards leave out to save themselves work; and whatever the
    policy does, it waits in the lowest; beside a service in those that hold it.
    """
    truth, idle_w = _oracle_surface(seat)
    warm = (seat.steps + WARM_UP_STEPS) / seat.steps
    none = np.zeros(len(truth.modes))
    known = Predictions(
        truth.modes, step_s=truth.step_s * warm, power_w=truth.power_w, step_s_sd_log=none, power_w_sd_log=none
    )
    maxn_idle_w = player.device.idle_w(player.fastest_mode)
    return pareto.build_front(
        known,
        steps=seat.steps,
        idle_w=idle_w,
        link_s=link_s,
        maxn=player.fastest_mode,
        maxn_idle_w=maxn_idle_w,
        limit=None,
        power=player.includes_low_power,
    )


def _oracle_surface(seat: EmulatedClient) -> tuple[ModeSurface, float]:
    """The true surface that is open to a planner who knows it, and the watts of waiting in its cheapest mode."""
    above = mask_above_floor(seat.surface.modes)
    if seat.serving is not None:
        return compute_best_served_surface(seat.serving, seat.surface, above)
    return seat.surface.select_rows(above), float(
        seat.surface.idle_w[seat.surface.find_row(find_lowest_mode(seat.truth.modes))]
    )


def _mean_errors(predictions: Predictions, truth: ModeSurface) -> tuple[float, float]:
    """Mean |predicted - true| / true of time and power over all modes that may be chosen."""
    time = np.abs(predictions.step_s - truth.step_s) / truth.step_s
    power = np.abs(predictions.power_w - truth.power_w) / truth.power_w
    return float(time.mean()), float(power.mean())
