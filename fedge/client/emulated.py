"""An emulated client: restores a board's state, data and predictor and answers one message at a time.

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
from fedge.devices.emulated_board import WARM_UP_STEPS, EmulatedBoard, find_top_mode
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.devices.network_link import NetworkLink
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import FedgeError, OutOfMemory
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.predictors import load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.protocols import Training
from fedge.seeds import derive_seed, make_generator
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_reporter import ProgressReporter
from fedge.types import (
    Front,
    Measurement,
    MemoryObservation,
    MemoryUse,
    Modes,
    NamedArrays,
    PowerMode,
    Predictions,
    ProfileTable,
    RoundGoal,
    RoundReport,
    TrainingScale,
    TrainResult,
)
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads.partitions import split_samples

logger = logging.getLogger(__name__)
MAX_CACHED_CLIENTS = 256
# Clients that a process keeps in memory, about 1 MB each; others are rebuilt on every request.


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedClient:
    """The parts of an emulated client that stay constant over a run.

    Attributes:
        board: Name, index and fleet entry.
        kind: Kind of board.
        surface: True time and power of all n modes.
        truth: The same for the m modes that may be chosen.
        references: Measured tables of other workloads for the predictor.
        link: The client's network.
        share: Indices of its training samples, shape (samples,).
        steps: Steps per round.
        candidate_mask: Which rows of ``surface`` may be chosen, shape (n,).
        serving: Standing service over all modes; None without one.
        scaling: Memory and scaling options; None if the memory need of a step is unknown.
        scale: Training scale if it is not the requested one; ``surface``, ``truth`` and ``steps`` are at that scale.
        loader: Data loader over all modes, whose stalls ``surface`` includes; None without one.
    """

    board: FleetBoard
    kind: BoardKind
    surface: ModeSurface
    """True time and power of all modes."""
    truth: ModeSurface
    """True time and power of the modes that may be chosen."""
    references: tuple[ProfileTable, ...]
    link: NetworkLink
    share: NDArray[np.int64]
    steps: int
    candidate_mask: NDArray[np.bool_]
    """Which modes of ``surface`` may be chosen, shape (n,)."""
    serving: EmulatedService | None = None
    """Standing service, over all modes of ``surface``."""
    scaling: ScalingContext | None = None
    """Memory and scaling options; None if the memory need of a step is unknown."""
    scale: TrainingScale | None = None
    """Training scale if it is not the requested one; ``surface``, ``truth`` and ``steps`` are at that scale."""
    loader: EmulatedLoader | None = None
    """Data loader over all modes of ``surface``, which includes its stalls; None without a loader."""


def load_client(experiment: Experiment, index: int) -> EmulatedClient:
    """Return the emulated client of board number ``index``; cached per process."""
    return _cached_client(experiment.model_dump_json(), index)


@lru_cache(maxsize=MAX_CACHED_CLIENTS)
def _cached_client(experiment_json: str, index: int) -> EmulatedClient:
    experiment = Experiment.model_validate_json(experiment_json)
    return _build_client(experiment, list_boards(experiment)[index], _partition_samples(experiment_json)[index])


@lru_cache(maxsize=4)
def _partition_samples(experiment_json: str) -> tuple[NDArray[np.int64], ...]:
    """Return every client's training samples."""
    experiment = Experiment.model_validate_json(experiment_json)
    rng = make_generator(experiment.seed, "partition")
    return tuple(
        split_samples(
            experiment.data, workloads.load_experiment_task(experiment).labels, len(list_boards(experiment)), rng
        )
    )


def _build_client(experiment: Experiment, board: FleetBoard, share: NDArray[np.int64]) -> EmulatedClient:
    kind = build_kind(board, experiment.workload)
    surface = build_surface(board, kind, experiment.seed)
    steps = count_steps(len(share), experiment.workload.batch_size, experiment.workload.local_epochs)
    allowed = mask_candidates_and_presets(surface.modes, kind.spec.presets.values())
    references = load_references(board, experiment.workload)
    link, serving = build_link(board.entry.link), build_service(board, kind, experiment.seed)
    means = build_board_scaling(experiment, board, kind.spec, lambda: workloads.load_experiment_task(experiment))
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


def _client_at_scale(client: EmulatedClient, attempt: ScaleAttempt | None) -> EmulatedClient:
    """Return the client at an attempt's scale, cached; its modes remain the same object."""
    scale = None if attempt is None else memory_scaling.measurement_scale(client.scaling, attempt.scale)
    if scale is None or client.scaling is None or attempt is None:
        return client
    known = _CLIENTS_AT_SCALE.get((client, scale))
    if known is not None:
        return known
    ratio, steps = (
        client.scaling.step_time_ratio(scale),
        memory_scaling.count_steps_at(client.steps, client.scaling.asked, scale),
    )
    made = dataclasses.replace(
        client,
        surface=scale_step_time(client.surface, ratio),
        truth=scale_step_time(client.truth, ratio),
        steps=steps,
        scale=scale,
    )
    if client.loader is not None:
        made = _apply_loader(made, client.loader.at_scale(scale.batch_size, ratio))
    if len(_CLIENTS_AT_SCALE) >= MAX_CACHED_CLIENTS:
        _CLIENTS_AT_SCALE.pop(next(iter(_CLIENTS_AT_SCALE)))
    _CLIENTS_AT_SCALE[client, scale] = made
    return made


def _apply_loader(client: EmulatedClient, load: EmulatedLoader) -> EmulatedClient:
    """Return the client with the loader's stalls at its scale; its modes remain the same object."""
    truth = dataclasses.replace(load.surface.select_rows(client.candidate_mask), modes=client.truth.modes)
    return dataclasses.replace(client, surface=load.surface, truth=truth, loader=load)


def answer_request(
    experiment: Experiment,
    index: int,
    request: RequestMessage,
    arrays: NamedArrays | None,
    folder: Path | None = None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[ReplyMessage, TrainResult | None]:
    """Answer a request as board number ``index``.

    Args:
        experiment: The resolved experiment.
        index: Index of the board.
        request: The request.
        arrays: Global model by name; needed for a training request.
        folder: Folder of the run for progress records, which do not affect the answer; None disables them.
        wall_s: Returns Unix time in seconds.

    Returns:
        The reply and, after training, its result. An error on the board is a reply with ``error``.
    """
    name = list_boards(experiment)[index].name
    try:
        if request.kind == "hello":
            return ReplyMessage(name), None
        client = load_client(experiment, index)
        if request.kind == "front":
            return _answer_front(experiment, client, request), None
        with open_emulated_reporter(
            folder, BoardProgress(name, 0.0, "fetching", round=request.round, steps=client.steps), wall_s
        ) as reporter:
            return _answer_round(experiment, client=client, request=request, arrays=arrays or {}, reporter=reporter)
    except Exception as error:
        logger.warning("%s failed in round %s", name, request.round, exc_info=error)
        reason = str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"
        return ReplyMessage(name, error=reason), None


def _answer_front(experiment: Experiment, client: EmulatedClient, request: RequestMessage) -> ReplyMessage:
    attempt = _first_attempt(client, request)
    client = _client_at_scale(client, attempt)
    service_plan = _plan_service(experiment, client, request)
    context = _build_context(
        experiment,
        client=client,
        request=request,
        board=_build_board(experiment, client, request, service_plan),
        service_plan=service_plan,
        attempt=attempt,
    )
    own_measurements = request.state.measurements
    peer_measurements = select_consistent_peers(context, own_measurements, request.shared)
    steps = client.steps + warm_up_steps(own_measurements)
    _, front = build_offer(
        context,
        own_measurements=own_measurements,
        peer_measurements=peer_measurements,
        steps=steps,
        link=client.link.transfer(request.model_bytes),
    )
    return ReplyMessage(client.board.name, front=front, samples=len(client.share))


def _first_attempt(client: EmulatedClient, request: RequestMessage) -> ScaleAttempt | None:
    return None if client.scaling is None else memory_scaling.choose_first_attempt(client.scaling, request.state)


def _answer_round(
    experiment: Experiment,
    client: EmulatedClient,
    request: RequestMessage,
    arrays: NamedArrays,
    reporter: ProgressReporter,
) -> tuple[ReplyMessage, TrainResult | None]:
    """Run a round at the first scale that does not run out of memory; reply with ``error`` if all of them do.

    The front in the reply is computed at the scale of the next round's first attempt.
    """
    attempt, means = _first_attempt(client, request), client.scaling
    while True:
        try:
            answer, trained = _run_round_at(
                experiment,
                client=_client_at_scale(client, attempt),
                request=request,
                arrays=arrays,
                reporter=reporter,
                attempt=attempt,
            )
        except OutOfMemory:
            assert attempt is not None
            assert means is not None
            lost_s = _failed_attempt_s(_client_at_scale(client, attempt))
            following = memory_scaling.choose_next_attempt(means, attempt, lost_s)
            if following is None:
                state = memory_scaling.build_failed_state(means, attempt, request, lost_s)
                return ReplyMessage(
                    client.board.name, state=state, error=memory_scaling.explain_out_of_memory(means, attempt)
                ), None
            attempt = following
        else:
            if answer.state is not None and memory_scaling.will_change_scale(means, attempt, answer.state):
                later = _answer_front(experiment, client, dataclasses.replace(request, state=answer.state))
                answer = dataclasses.replace(answer, front=later.front)
            return answer, trained


def _failed_attempt_s(client: EmulatedClient) -> float:
    """Return the seconds of an attempt that runs out of memory, estimated as its first step in the fastest mode."""
    return (1.0 + WARM_UP_STEPS) * float(client.surface.step_s[client.surface.find_row(find_top_mode(client.surface))])


def _add_truth(
    report: RoundReport,
    offered: Front,
    prior_errors: tuple[float | None, float | None],
    errors: tuple[float, float],
) -> RoundReport:
    """Add what only an emulated board knows: the true front, and the prediction errors (time, power) against it."""
    return dataclasses.replace(
        report,
        true_front=offered,
        prior_time_ape=prior_errors[0],
        prior_power_ape=prior_errors[1],
        time_ape=errors[0],
        power_ape=errors[1],
    )


def _run_round_at(
    experiment: Experiment,
    client: EmulatedClient,
    request: RequestMessage,
    arrays: NamedArrays,
    reporter: ProgressReporter,
    attempt: ScaleAttempt | None,
) -> tuple[ReplyMessage, TrainResult]:
    service_plan = _plan_service(experiment, client, request)
    board = _build_board(experiment, client, request, service_plan)
    start_c = board.temperature_c
    context = _build_context(
        experiment, client=client, request=request, board=board, service_plan=service_plan, attempt=attempt
    )
    link = client.link.transfer(request.model_bytes)
    first = not request.state.measurements
    truth = _truth_surface(client, service_plan)
    prior_apes = _mean_errors(context.predictor.fit([]).predict(context.candidates), truth) if first else (None, None)
    goal = dataclasses.replace(request.goal or RoundGoal(request.policy, client.steps), steps=client.steps)
    reporter.report(device=client.kind.spec.name)
    peak_mb = _round_peak_mb(experiment, client, attempt)
    training = ProgressTraining(
        _start_training(experiment, client=client, request=request, arrays=arrays, attempt=attempt, peak_mb=peak_mb),
        reporter,
    )
    reporting_context = attach_progress(context, reporter, client.steps)
    result = run_round(
        reporting_context,
        goal=goal,
        measurements=request.state.measurements,
        link=link,
        training=training,
        peer_measurements=request.shared,
    )
    report = build_report(
        result,
        context,
        request.round,
        link,
        asked_steps=client.steps,
        samples=len(client.share),
        temperature_c=board.temperature_c,
        memory=_memory_use(client, attempt, request, peak_mb),
    )
    offered = true_front(client, context, link.down_s + link.up_s)
    report = _add_truth(report, offered, prior_apes, _mean_errors(result.predictions, truth))
    trace = build_emulated_trace(report, context.waiting_mode, board.thermal, start_c)
    state = next_board_state(request, result, report, _update_memory_history(client, attempt, peak_mb))
    return ReplyMessage(client.board.name, result.front, report, state, trace=trace), result.trained


def _start_training(
    experiment: Experiment,
    client: EmulatedClient,
    request: RequestMessage,
    arrays: NamedArrays,
    attempt: ScaleAttempt | None,
    peak_mb: float | None,
) -> Training:
    scale = TrainingScale(experiment.workload.batch_size) if attempt is None else attempt.scale
    options = memory_scaling.build_train_options(experiment.workload, client.steps, scale, request.proximal_mu)
    seed = derive_seed(experiment.seed, client.board.name, request.round, "train")
    training = workloads.load_experiment_task(experiment).start(arrays, client.share, seed, options)
    return (
        training
        if client.scaling is None or peak_mb is None
        else MemoryLimitedTraining(training, peak_mb, client.scaling.limit_mb)
    )


def _round_peak_mb(experiment: Experiment, client: EmulatedClient, attempt: ScaleAttempt | None) -> float | None:
    """Return the true peak memory of a step in MB, or None if it is unknown."""
    if attempt is None or client.scaling is None:
        return None
    return true_peak_mb(client.scaling, attempt.scale, client.board.name, experiment.seed)


def _memory_use(
    client: EmulatedClient, attempt: ScaleAttempt | None, request: RequestMessage, peak_mb: float | None
) -> MemoryUse | None:
    return (
        None
        if attempt is None or client.scaling is None
        else memory_scaling.summarize_memory_use(client.scaling, attempt, request.state, peak_mb)
    )


def _update_memory_history(
    client: EmulatedClient, attempt: ScaleAttempt | None, peak_mb: float | None
) -> tuple[MemoryObservation, ...] | None:
    return (
        None
        if attempt is None or client.scaling is None
        else memory_scaling.update_memory_history(client.scaling, attempt, peak_mb)
    )


def _build_board(
    experiment: Experiment, client: EmulatedClient, request: RequestMessage, service_plan: RoundService | None = None
) -> EmulatedBoard:
    """Build the board in its state at the end of its last work, cooled down until the round's start."""
    ambient_c = client.board.entry.ambient_c
    temperature_c = ambient_c if request.state.temperature_c is None else request.state.temperature_c
    rng = make_generator(experiment.seed, client.board.name, request.round, "noise")
    service = None
    if client.serving is not None and service_plan is not None:
        seed = derive_seed(experiment.seed, client.board.name, request.round, "requests")
        service = ServiceSimulation(client.serving, service_plan, client.surface, seed)
    thermal = build_thermal_model(client.kind.spec, ambient_c)
    board = EmulatedBoard(
        client.kind.spec, surface=client.surface, thermal=thermal, temperature_c=temperature_c, rng=rng, beside=service
    )
    board.idle_for(
        max(0.0, request.start_s - request.state.rested_at_s), _choose_waiting_mode(client, request, service_plan)
    )
    return board


def _choose_waiting_mode(
    client: EmulatedClient, request: RequestMessage, service_plan: RoundService | None
) -> PowerMode:
    if service_plan is None:
        return choose_waiting_mode(request.policy, client.kind.spec, client.truth.modes)
    return choose_serving_wait_mode(
        service_plan, request.policy, client.kind.spec, client.kind.average.idle_w[client.candidate_mask]
    )


def _plan_service(experiment: Experiment, client: EmulatedClient, request: RequestMessage) -> RoundService | None:
    """Plan the board's standing service for this round; None without one."""
    if client.serving is None:
        return None
    inner = _CachedPredictor(client, experiment.predictor, _idle_power_w(client))
    believed = expected_inference_costs(client.serving, client.truth.modes, client.candidate_mask)
    pinned = choose_waiting_mode(request.policy, client.kind.spec, client.truth.modes)
    stay = (find_top_mode(client.surface), *((pinned,) if request.policy.startswith("preset:") else ()))
    return plan_round_service(
        believed, demand=client.serving.demand, inner=inner, own_measurements=request.state.measurements, stay=stay
    )


def _idle_power_w(client: EmulatedClient) -> float:
    """Return the power at rest in the top mode without serving, in watts."""
    return float(client.surface.idle_w[client.surface.find_row(find_top_mode(client.surface))])


def _truth_surface(client: EmulatedClient, service_plan: RoundService | None) -> ModeSurface:
    """Return the true time and power of this round's candidate modes, including the load of the service."""
    if client.serving is None or service_plan is None:
        return client.truth
    return compute_served_surface(client.serving, service_plan, client.surface, client.candidate_mask)


def _predict_cached(
    client: EmulatedClient, predictor: str, idle_w: float, measurements: tuple[Measurement, ...]
) -> Predictions:
    """Return a client's predictions after ``measurements``; the last ones are cached per client."""
    known = _LAST_PREDICTIONS.get(client)
    if known is not None and known[0] == (predictor, measurements):
        return known[1]
    learner = load_predictor(predictor, build_knowledge(client.kind, client.references, idle_w))
    if client.scaling is not None:
        learner = RescalingPredictor(learner, client.scaling, client.scale)
    if client.loader is not None:
        learner = LoaderPredictor(learner, client.loader.expected)
    predictions = learner.fit(measurements).predict(client.truth.modes)
    if len(_LAST_PREDICTIONS) >= MAX_CACHED_CLIENTS:
        _LAST_PREDICTIONS.pop(next(iter(_LAST_PREDICTIONS)))
    _LAST_PREDICTIONS[client] = (predictor, measurements), predictions
    return predictions


_CLIENTS_AT_SCALE: dict[tuple[EmulatedClient, TrainingScale], EmulatedClient] = {}
_LAST_PREDICTIONS: dict[EmulatedClient, tuple[tuple[str, tuple[Measurement, ...]], Predictions]] = {}


class _CachedPredictor:
    """A client's predictor, which starts a round with the cached predictions of the previous round's end."""

    def __init__(
        self, client: EmulatedClient, predictor: str, idle_w: float, service_plan: RoundService | None = None
    ) -> None:
        self._seat, self._predictor, self._idle_w, self._duty = client, predictor, idle_w, service_plan
        self._measurements: tuple[Measurement, ...] = ()

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._measurements = tuple(measurements)
        return self

    def predict(self, modes: Modes) -> Predictions:
        service_plan = self._duty
        if modes is not (self._seat.truth.modes if service_plan is None else service_plan.while_training.modes):
            raise ValueError("a seat predicts its own modes only")
        every = _predict_cached(self._seat, self._predictor, self._idle_w, self._measurements)
        if service_plan is None:
            return every
        columns = (every.step_s, every.power_w, every.step_s_sd_log, every.power_w_sd_log)
        return Predictions(modes, *(column[service_plan.keep] for column in columns))


def _build_context(
    experiment: Experiment,
    client: EmulatedClient,
    request: RequestMessage,
    board: EmulatedBoard,
    service_plan: RoundService | None,
    attempt: ScaleAttempt | None,
) -> RoundContext:
    maxn, idle_w = find_top_mode(client.surface), _idle_power_w(client)
    knowledge = build_knowledge(client.kind, client.references, idle_w)
    inner = _CachedPredictor(client, experiment.predictor, idle_w, service_plan)
    context = RoundContext(
        client.board.name,
        device=board,
        predictor=inner,
        policy=load_policy(request.policy),
        workload=build_workload(client.board.entry, experiment.workload),
        candidates=client.truth.modes,
        fastest_mode=maxn,
        waiting_mode=_choose_waiting_mode(client, request, service_plan),
        exploration=experiment.exploration,
        make_explorer=lambda modes: load_explorer(PROBE_EXPLORER, modes, knowledge),
        step_budgets_s=request.state.allowed_s,
        includes_low_power=request.policy == POWER_PLANNING_POLICY,
    )
    if client.loader is not None:
        context = attach_loader(context, client.loader.expected, wrap_with_stalls(client.loader, board))
    beside = context if service_plan is None else attach_service(context, service_plan, inner)
    return (
        beside
        if client.scaling is None or attempt is None
        else apply_scale(beside, client.scaling, attempt, request.state)
    )


def true_front(client: EmulatedClient, context: RoundContext, link_s: float) -> Front:
    """Build the front from the board's noise-free truth, for the energy of the oracle only.

    It includes every mode above the floor, also those outside the candidates, waits in the cheapest mode whatever the
    policy does, and with a service uses only modes that sustain it.

    Args:
        client: The emulated client.
        context: The client's context.
        link_s: Seconds to download and upload the model.
    """
    truth, idle_w = _oracle_surface(client)
    warm = (client.steps + WARM_UP_STEPS) / client.steps
    none = np.zeros(len(truth.modes))
    known = Predictions(
        truth.modes, step_s=truth.step_s * warm, power_w=truth.power_w, step_s_sd_log=none, power_w_sd_log=none
    )
    maxn_idle_w = context.device.idle_w(context.fastest_mode)
    return pareto.build_front(
        known,
        steps=client.steps,
        idle_w=idle_w,
        link_s=link_s,
        maxn=context.fastest_mode,
        maxn_idle_w=maxn_idle_w,
        limit=None,
        power=context.includes_low_power,
    )


def _oracle_surface(client: EmulatedClient) -> tuple[ModeSurface, float]:
    """Return the true surface of the oracle's modes and the power of waiting in the cheapest of them in watts."""
    above = mask_above_floor(client.surface.modes)
    if client.serving is not None:
        return compute_best_served_surface(client.serving, client.surface, above)
    return client.surface.select_rows(above), float(
        client.surface.idle_w[client.surface.find_row(find_lowest_mode(client.truth.modes))]
    )


def _mean_errors(predictions: Predictions, truth: ModeSurface) -> tuple[float, float]:
    """Return the mean absolute percentage errors of time and power over all candidates, as shares."""
    time = np.abs(predictions.step_s - truth.step_s) / truth.step_s
    power = np.abs(predictions.power_w - truth.power_w) / truth.power_w
    return float(time.mean()), float(power.mean())
