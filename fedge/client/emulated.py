"""An emulated client: restores a board's state, data and predictor and answers one message at a time.

The same function serves Flower's actors and the in-process backend, so both write the same rows.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge import workloads
from fedge.call_cache import cache_last_call
from fedge.client.answers import Answer, build_reply, first_attempt, run_attempts
from fedge.client.client_setup import (
    ClientSetup,
    RoundConditions,
    begin_requested_round,
    build_first_front,
    build_round,
    plan_conditions,
)
from fedge.client.emulated_resources import (
    EmulatedLoader,
    MemoryLimitedTraining,
    build_board_scaling,
    build_loader,
    evaluate_emulated,
    true_peak_mb,
)
from fedge.client.emulated_service import (
    EmulatedService,
    ServiceSimulation,
    build_service,
    compute_best_served_surface,
    compute_served_surface,
    expected_inference_costs,
)
from fedge.client.evidence import fit_and_predict
from fedge.client.inference_service import ExpectedService, RoundService
from fedge.client.memory_scaling import ScaleAttempt, ScalingContext, build_train_options
from fedge.client.prediction_requests import Asking, CachedPredictor, run_alone, run_together
from fedge.client.progress import open_emulated_reporter
from fedge.client.round import finish_round
from fedge.client.round_state import RoundContext, count_steps
from fedge.client.round_trace import build_emulated_trace
from fedge.costs.layered_work import build_workload, count_priced_bytes
from fedge.decisions.candidate_modes import mask_above_floor, mask_candidates_and_presets
from fedge.decisions.policies import find_lowest_mode
from fedge.devices.board_kinds import BoardKind, build_kind, build_knowledge, build_link, build_surface, load_references
from fedge.devices.emulated_board import WARM_UP_STEPS, EmulatedBoard, find_top_mode
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import describe_error
from fedge.experiment import Experiment, FleetBoard, FleetEntry, choose_training_device, list_boards
from fedge.pareto import build_front
from fedge.predictors import load_predictor
from fedge.protocols import Training
from fedge.seeds import derive_seed, make_generator
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.progress_files import ProgressReporter
from fedge.types import Floats32, Front, Modes, NamedArrays, PowerMode, Predictions, TrainingScale, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.workloads.partitions import split_task, split_test

logger = logging.getLogger(__name__)
MAX_CACHED_CLIENTS = 1024
# Clients that a process keeps in memory, about 0.8 MB each; others are rebuilt, and predict anew, on every request.
MAX_CLIENTS_TOGETHER = 64
# Default: clients whose rounds are computed together, which bounds what a process holds of unfinished rounds.
MAX_TRUE_FRONTS = 64
# Fronts of the truth that a client keeps: a plan with other steps or another encoding every round needs ever new ones.

NO_SAMPLES = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedClient:
    """An emulated client: what is known of it, and the truth.

    Attributes:
        surface: True time and power of all n modes at the requested training scale, including the loader's stalls.
        candidate_mask: Which rows of ``surface`` may be chosen, shape (n,).
        share: Indices of its training samples, shape (samples,).
        test_share: Indices of the test samples on which it evaluates a model.
        true_fronts: The newest fronts of the truth, at most ``MAX_TRUE_FRONTS``, by their conditions.
    """

    setup: ClientSetup
    kind: BoardKind
    surface: ModeSurface
    candidate_mask: NDArray[np.bool_]
    share: NDArray[np.int64]
    test_share: NDArray[np.int64]
    serving: EmulatedService | None = None
    loader: EmulatedLoader | None = None
    _surfaces: dict[TrainingScale, ModeSurface] = field(default_factory=dict)
    _truths: dict[ModeSurface, ModeSurface] = field(default_factory=dict)
    true_fronts: dict[tuple[object, ...], Front] = field(default_factory=dict)

    @property
    def truth(self) -> ModeSurface:
        """Return the rows of ``surface`` that may be chosen."""
        return self.select_candidates(self.surface)

    def select_candidates(self, surface: ModeSurface) -> ModeSurface:
        """Return the rows of one of the client's surfaces that may be chosen."""
        if surface not in self._truths:
            self._truths[surface] = surface.select_rows(self.candidate_mask)
        return self._truths[surface]

    def surface_at(self, scale: TrainingScale | None) -> ModeSurface:
        """Return ``surface`` at another training scale; None stands for the requested one."""
        if scale is None or self.setup.scaling is None:
            return self.surface
        if scale not in self._surfaces:
            ratio = self.setup.scaling.step_time_ratio(scale)
            self._surfaces[scale] = (
                scale_step_time(self.surface, ratio)
                if self.loader is None
                else self.loader.at_scale(scale.batch_size, ratio).surface
            )
        return self._surfaces[scale]


def load_client(experiment: Experiment, index: int) -> EmulatedClient:
    """Return the emulated client of board number ``index``; cached per process."""
    return _cached_client(_dump_experiment(experiment), index)


@cache_last_call
def _dump_experiment(experiment: Experiment) -> str:
    return experiment.model_dump_json()


@lru_cache(maxsize=MAX_CACHED_CLIENTS)
def _cached_client(experiment_json: str, index: int) -> EmulatedClient:
    experiment, boards = _load_fleet(experiment_json)
    share, test_share = partition_samples(experiment_json)[index]
    scaling = _share_scaling(experiment_json, boards[index].entry)
    return build_client(experiment, boards[index], share, test_share, scaling=scaling)


@lru_cache(maxsize=4)
def _load_fleet(experiment_json: str) -> tuple[Experiment, tuple[FleetBoard, ...]]:
    experiment = Experiment.model_validate_json(experiment_json)
    return experiment, list_boards(experiment)


@lru_cache(maxsize=64)
def _share_scaling(experiment_json: str, entry: FleetEntry) -> ScalingContext | None:
    """Return the options of all boards of an entry, as the estimates that they keep take milliseconds."""
    return build_board_scaling(_load_fleet(experiment_json)[0], entry)


@lru_cache(maxsize=4)
def partition_samples(experiment_json: str) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
    """Return every client's training samples, and its test samples if clients evaluate."""
    experiment, boards = _load_fleet(experiment_json)
    task = workloads.load_experiment_task(experiment)
    shares = split_task(experiment.data, task, len(boards), make_generator(experiment.seed, "partition"))
    if experiment.evaluation.by == "server":
        return tuple((share, NO_SAMPLES) for share in shares)
    test_labels: NDArray[np.int64] = getattr(task, "test_labels")  # noqa: B009 -- optional in the protocol
    return tuple(zip(shares, split_test(shares, task.labels, test_labels), strict=True))


def build_client(
    experiment: Experiment,
    board: FleetBoard,
    share: NDArray[np.int64],
    test_share: NDArray[np.int64] = NO_SAMPLES,
    *,
    scaling: ScalingContext | None,
) -> EmulatedClient:
    """Build the emulated client of a board with the indices of its training and test samples."""
    kind = build_kind(board, experiment.workload)
    surface = build_surface(board, kind, experiment.seed)
    mask = _mask_candidates(surface.modes, tuple(kind.spec.presets.values()))
    candidates = surface.modes.select(mask)
    serving, loader = build_service(board, kind, experiment.seed), build_loader(board, kind, surface, experiment)
    surface = surface if loader is None else loader.surface
    fastest_mode = find_top_mode(surface)
    idle_w = float(surface.idle_w[surface.find_row(fastest_mode)])
    knowledge = build_knowledge(kind, load_references(board, experiment.workload), idle_w)
    setup = ClientSetup(
        board,
        spec=kind.spec,
        workload=build_workload(board.entry, experiment.workload),
        exploration=experiment.exploration,
        candidates=candidates,
        fastest_mode=fastest_mode,
        knowledge=knowledge,
        predictor=CachedPredictor(lambda: load_predictor(experiment.predictor, knowledge)),
        steps=count_steps(len(share), experiment.workload.batch_size, experiment.workload.local_epochs),
        samples=len(share),
        link=build_link(board.entry.link),
        model_bytes=count_priced_bytes(board.entry, experiment.workload),
        service=None if serving is None else _expect_service(serving, kind, candidates, mask),
        loader=None if loader is None else loader.expected,
        scaling=scaling,
    )
    return EmulatedClient(
        setup,
        kind=kind,
        surface=surface,
        candidate_mask=mask,
        share=share,
        test_share=test_share,
        serving=serving,
        loader=loader,
    )


@lru_cache(maxsize=64)
def _mask_candidates(modes: Modes, presets: tuple[PowerMode, ...]) -> NDArray[np.bool_]:
    return mask_candidates_and_presets(modes, presets)


def _expect_service(
    serving: EmulatedService, kind: BoardKind, candidates: Modes, mask: NDArray[np.bool_]
) -> ExpectedService:
    inference = expected_inference_costs(serving, candidates, mask)
    return ExpectedService(serving.demand, inference, idle_w=kind.average.idle_w[mask])


@dataclass(frozen=True, slots=True, eq=False)
class ClientTask:
    """A request to an emulated client.

    Attributes:
        arrays: Global model by name; needed for a training request.
        folder: Folder of the run for progress records, which do not affect the answer; None disables them.
        residual: What the client's earlier encodings left out; None for nothing.
    """

    experiment: Experiment
    index: int
    request: RequestMessage
    arrays: NamedArrays | None = None
    folder: Path | None = None
    wall_s: Callable[[], float] = time.time
    residual: Floats32 | None = None


def answer_request(
    experiment: Experiment,
    index: int,
    request: RequestMessage,
    arrays: NamedArrays | None,
    folder: Path | None = None,
    wall_s: Callable[[], float] = time.time,
) -> Answer:
    """Answer one request; the arguments are those of ``ClientTask``.

    Returns:
        The reply and, after training, its result. An error on the board is a reply with ``error``.
    """
    return run_alone(_ask_answer(ClientTask(experiment, index, request, arrays, folder=folder, wall_s=wall_s)))


def answer_together(tasks: Sequence[ClientTask]) -> list[Answer]:
    """Answer requests to different clients, who predict together; each as ``answer_request`` would."""
    answers = list[Answer]()
    for first in range(0, len(tasks), MAX_CLIENTS_TOGETHER):
        answers += run_together([_ask_answer(task) for task in tasks[first : first + MAX_CLIENTS_TOGETHER]])
    return answers


def _ask_answer(task: ClientTask) -> Asking[Answer]:
    experiment, request = task.experiment, task.request
    boards = list_boards(experiment)
    name = boards[task.index].name
    try:
        if request.kind == "hello":
            return ReplyMessage(name), None
        client = load_client(experiment, task.index)
        setup, open_device = client.setup, partial(open_board, client, experiment.seed)
        if request.kind == "front":
            front = yield from build_first_front(setup, request, first_attempt(setup, request.state), open_device)
            return ReplyMessage(name, front=front, samples=setup.samples), None
        if request.kind == "evaluate":
            arrays, share = task.arrays or {}, client.test_share
            return evaluate_emulated(experiment, setup, client.kind, request, arrays=arrays, share=share), None
        begun = BoardProgress(name, 0.0, "fetching", device=setup.spec.name, round=request.round, steps=setup.steps)
        with open_emulated_reporter(task.folder, begun, task.wall_s, len(boards)) as reporter:
            running = _EmulatedRound(
                experiment, client=client, request=request, arrays=task.arrays or {}, reporter=reporter
            )
            return (yield from run_attempts(setup, request, running.run_attempt, open_device))
    except Exception as error:
        logger.warning("%s failed in round %s", name, request.round, exc_info=error)
        return ReplyMessage(name, error=describe_error(error)), None


def open_board(client: EmulatedClient, seed: int, conditions: RoundConditions) -> EmulatedBoard:
    """Return the board in its state at the end of its last work, cooled down until the round's start."""
    request, ambient_c, name = conditions.request, client.setup.board.entry.ambient_c, client.setup.board.name
    surface, service = client.surface_at(conditions.scale), None
    if client.serving is not None and conditions.service is not None:
        requests_seed = derive_seed(seed, name, request.round, "requests")
        service = ServiceSimulation(client.serving, conditions.service, surface, requests_seed)
    board = EmulatedBoard(
        client.kind.spec,
        surface=surface,
        thermal=build_thermal_model(client.kind.spec, ambient_c),
        temperature_c=ambient_c if request.state.temperature_c is None else request.state.temperature_c,
        rng=make_generator(seed, name, request.round, "noise"),
        beside=service,
    )
    board.idle_for(max(0.0, request.start_s - request.state.rested_at_s), conditions.waiting_mode)
    return board


@dataclass(frozen=True, slots=True, eq=False)
class _EmulatedRound:
    """A training request on an emulated client; arguments of ``answer_request`` and the client's reporter."""

    experiment: Experiment
    client: EmulatedClient
    request: RequestMessage
    arrays: NamedArrays
    reporter: ProgressReporter

    def run_attempt(self, setup: ClientSetup, attempt: ScaleAttempt | None) -> Asking[Answer]:
        """Run the round at one training scale.

        Raises:
            OutOfMemory: If a step needs more memory than the board has.
        """
        client, request, seed = self.client, self.request, self.experiment.seed
        conditions = plan_conditions(setup, request, attempt)
        board = open_board(client, seed, conditions)
        context = build_round(setup, conditions, board, self.reporter)
        truth = _candidate_truth(client, board.surface, conditions.service)
        start_c, peak_mb = board.temperature_c, None
        if setup.scaling is not None and attempt is not None:
            peak_mb = true_peak_mb(setup.scaling, attempt.scale, setup.board.name, seed)
        prior_apes: tuple[float, float] | tuple[None, None] = (None, None)
        if not request.state.measurements:
            prior = yield from fit_and_predict(context, request.recalled, request.shared if request.round == 1 else ())
            prior_apes = _mean_errors(prior, truth)
        training = self._start_training(context, board.surface, peak_mb)
        state = yield from begin_requested_round(setup, request, context, training)
        result = yield from finish_round(state)
        reply, report = build_reply(
            setup,
            conditions,
            context=context,
            result=result,
            temperature_c=board.temperature_c,
            peak_mb=peak_mb,
        )
        apes = _mean_errors(result.predictions, truth)
        report = dataclasses.replace(
            report,
            true_front=build_true_front(client, request, context, board.surface),
            prior_time_ape=prior_apes[0],
            prior_power_ape=prior_apes[1],
            time_ape=apes[0],
            power_ape=apes[1],
        )
        trace = build_emulated_trace(report, context.waiting_mode, board.thermal, start_c)
        return dataclasses.replace(reply, report=report, trace=trace), result.trained

    def _start_training(self, context: RoundContext, surface: ModeSurface, peak_mb: float | None) -> Training:
        experiment, setup = self.experiment, self.client.setup
        scale = context.scale or TrainingScale(experiment.workload.batch_size)
        steps = setup.round_steps(self.request, context.scale)
        options = build_train_options(experiment.workload, steps, scale, self.request)
        seed = derive_seed(experiment.seed, setup.board.name, self.request.round, "train")

        def start() -> Training:
            task = workloads.load_experiment_task(experiment, choose_training_device(experiment))
            return task.start(self.arrays, self.client.share, seed, options)

        training = DeferredTraining(start)
        if setup.scaling is None or peak_mb is None:
            return training
        lost_s = (1.0 + WARM_UP_STEPS) * float(surface.step_s[surface.find_row(setup.fastest_mode)])
        return MemoryLimitedTraining(training, peak_mb, setup.scaling.limit_mb, lost_s)


class DeferredTraining:
    """A ``fedge.protocols.Training`` that runs all its steps when its result is asked for.

    On an emulated board the steps do not change what is measured. So the clients that are computed together need not
    hold a model each.
    """

    def __init__(self, start: Callable[[], Training]) -> None:
        self._start = start
        self._stretches: list[int] = []

    def advance(self, steps: int) -> None:
        self._stretches.append(steps)

    def result(self) -> TrainResult:
        training = self._start()
        for steps in self._stretches:
            training.advance(steps)
        return training.result()


def _candidate_truth(client: EmulatedClient, surface: ModeSurface, service: RoundService | None) -> ModeSurface:
    """Return the true time and power of the round's candidate modes, including the load of the service."""
    if client.serving is None or service is None:
        return client.select_candidates(surface)
    return compute_served_surface(client.serving, service, surface, client.candidate_mask)


def build_true_front(
    client: EmulatedClient, request: RequestMessage, context: RoundContext, surface: ModeSurface
) -> Front:
    """Build the front from the board's noise-free truth, for the energy of the oracle only.

    It includes every mode above the floor, also those outside the candidates, waits in the cheapest mode whatever the
    policy does, and with a service uses only modes that sustain it. Attempts that ran out of memory take their time
    whatever the mode, at its power as in the round itself.
    """
    link = client.setup.limit_width(request).transfer(request, context.scale)
    link_s, maxn_idle_w = link.down_s + link.up_s, context.device.idle_w(context.fastest_mode)
    steps = client.setup.round_steps(request, context.scale)
    conditions = context.scale, steps, link_s, maxn_idle_w, context.includes_low_power, context.lost_s
    if conditions not in client.true_fronts:
        if len(client.true_fronts) >= MAX_TRUE_FRONTS:
            del client.true_fronts[next(iter(client.true_fronts))]
        truth, idle_w = _oracle_surface(client, surface)
        none = np.zeros(len(truth.modes))
        known = Predictions(
            truth.modes,
            step_s=truth.step_s * ((steps + WARM_UP_STEPS) / steps) + context.lost_s / steps,
            power_w=truth.power_w,
            step_s_sd_log=none,
            power_w_sd_log=none,
        )
        client.true_fronts[conditions] = build_front(
            known,
            steps=steps,
            idle_w=idle_w,
            link_s=link_s,
            maxn=context.fastest_mode,
            maxn_idle_w=maxn_idle_w,
            radio_j=link.radio_j,
            limit=None,
            power=context.includes_low_power,
        )
    return client.true_fronts[conditions]


def _oracle_surface(client: EmulatedClient, surface: ModeSurface) -> tuple[ModeSurface, float]:
    """Return the true surface of the oracle's modes and the power of waiting in the cheapest of them in watts."""
    above = mask_above_floor(surface.modes)
    if client.serving is not None:
        return compute_best_served_surface(client.serving, surface, above)
    lowest = surface.find_row(find_lowest_mode(client.setup.candidates))
    return surface.select_rows(above), float(surface.idle_w[lowest])


def _mean_errors(predictions: Predictions, truth: ModeSurface) -> tuple[float, float]:
    """Return the mean absolute percentage errors of time and power over all candidates, as shares."""
    time = np.abs(predictions.step_s - truth.step_s) / truth.step_s
    power = np.abs(predictions.power_w - truth.power_w) / truth.power_w
    return float(time.mean()), float(power.mean())
