"""A real client's round: probing and training on the board, also if memory runs out or the round is cancelled."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedge.client.board_session import BoardSession, build_task_request
from fedge.client.evidence import build_offer, select_consistent_peers
from fedge.client.inference_service import attach_service, choose_serving_wait_mode
from fedge.client.installed_service import (
    InstalledService,
    ServiceDevice,
    ServiceReplies,
    install_service,
    plan_installed_service,
)
from fedge.client.memory_attempts import MemoryAttempts
from fedge.client.memory_scaling import ScaleLabelDevice, apply_scale, build_train_options
from fedge.client.progress import ProgressTraining, attach_progress
from fedge.client.round import run_round
from fedge.client.round_context import POWER_PLANNING_POLICY, PROBE_EXPLORER, RoundContext, RoundResult
from fedge.client.round_report import build_report, next_board_state
from fedge.client.round_trace import RoundPhase, TracingDevice, build_link_phases
from fedge.client.step_accounting import warm_up_steps
from fedge.client.watchdog import CancellableTraining, Watchdog, cancel_after
from fedge.client.worker_training import WorkerTraining
from fedge.clock import RealClock
from fedge.costs.layered_work import build_workload
from fedge.decisions.candidate_modes import mask_candidates_and_presets
from fedge.decisions.policies import choose_waiting_mode, load_policy
from fedge.devices.board_kinds import list_priors, load_references, mode_idle_power_w
from fedge.devices.device_wrapper import DeviceWrapper
from fedge.errors import WorkerFailed
from fedge.modes import build_grid
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import load_predictor
from fedge.predictors.explorers import load_explorer
from fedge.protocols import Device
from fedge.seeds import derive_seed
from fedge.telemetry.progress_reporter import ProgressReporter
from fedge.telemetry.trace_operations import shift_trace
from fedge.types import (
    LinkUse,
    Measurement,
    MemoryObservation,
    Modes,
    NamedArrays,
    PowerMode,
    RoundGoal,
    TrainingScale,
    TrainResult,
    Workload,
)
from fedge.wire import ReplyMessage, RequestMessage


class RecordingDevice(DeviceWrapper):
    """A ``fedge.protocols.Device`` wrapper that keeps its measurements and enforces a time limit.

    Attributes:
        measured: All measurements so far; they survive a cancelled round.
    """

    def __init__(self, device: Device, left_s: Callable[[], float | None] = lambda: None) -> None:
        super().__init__(device)
        self._left_s = left_s
        self.measured: list[Measurement] = []

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        limits_s = [limit for limit in (limit_s, self._left_s()) if limit is not None]
        self.measured.append(self._device.measure(workload, steps, work, min(limits_s, default=None)))
        return self.measured[-1]


logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 3.0
# After its time limit a client stops by itself between two stretches of steps; after this grace period the worker is
# cancelled within a stretch, and only earlier measurements are kept. Default: longer than a stretch of half a second.


def answer_front(session: BoardSession, request: RequestMessage) -> tuple[ReplyMessage, None]:
    """Return the client's first offer and its number of samples, before any round."""
    with session.here.board.hold():
        attempts = MemoryAttempts(session, request)
        attempts.begin()
        session = attempts.scaled_session
        service = _plan_service(session, request, attempts)
        context = _build_context(session, request, service, attempts)
        if service is not None:
            board = ServiceDevice(session.here.board, ServiceReplies(service), service.round_service.while_idle)
            context = dataclasses.replace(context, device=board)
        own_measurements = request.state.measurements
        peer_measurements = select_consistent_peers(context, own_measurements, request.shared)
        steps = session.steps + warm_up_steps(own_measurements)
        _, offered = build_offer(
            context,
            own_measurements=own_measurements,
            peer_measurements=peer_measurements,
            steps=steps,
            link=session.link_use(request),
        )
    return ReplyMessage(session.board.name, front=offered, samples=session.samples, recorded=session.recorded), None


def answer_round(
    session: BoardSession, request: RequestMessage, arrays: NamedArrays, reporter: ProgressReporter
) -> tuple[ReplyMessage, TrainResult | None]:
    """Run the client's share of a round, or as much of it as time allows.

    An attempt that runs out of memory is followed by smaller ones at once.

    Returns:
        The reply and the training result; the latter is None if nothing was trained.

    Raises:
        WorkerFailed: If the worker fails for a reason other than memory or cancellation.
    """
    started_s = time.monotonic()
    attempts = MemoryAttempts(session, request)
    attempts.begin()
    while True:
        begun_s = time.monotonic()
        try:
            answer, result = _run_attempt(
                attempts, request=request, arrays=arrays, reporter=reporter, started_s=started_s
            )
        except WorkerFailed as error:
            failed = attempts.handle_failure(error, begun_s)
        else:
            return _update_front(session, request, attempts, answer), result
        if failed is not None:
            return failed, None


def _update_front(
    session: BoardSession, request: RequestMessage, attempts: MemoryAttempts, answer: ReplyMessage
) -> ReplyMessage:
    """Return the reply with a front at the scale of the next round's first attempt."""
    if answer.front is None or answer.state is None or not attempts.will_change_scale(answer.state):
        return answer
    later, _ = answer_front(session, dataclasses.replace(request, state=answer.state))
    return dataclasses.replace(answer, front=later.front)


def _run_attempt(
    attempts: MemoryAttempts, request: RequestMessage, arrays: NamedArrays, reporter: ProgressReporter, started_s: float
) -> tuple[ReplyMessage, TrainResult | None]:
    """Run the share at the current attempt's scale, in a round that began at the monotonic time ``started_s``."""
    session = attempts.scaled_session
    work, link = session.experiment.workload, session.link_use(request)
    goal = dataclasses.replace(request.goal or RoundGoal(request.policy, session.steps), steps=session.steps)
    seed = derive_seed(session.experiment.seed, session.board.name, request.round, "train")
    scale = session.scale or TrainingScale(work.batch_size)
    options = build_train_options(work, session.steps, scale, request.proximal_mu)
    watchdog, training = Watchdog(), None
    service = _install_service(session, request, attempts)
    replies = None if service is None else ServiceReplies(service)
    watching = _build_tracing_device(session, attempts, _wrap_with_service(session, service, replies))
    metered = watching if session.scale is None else ScaleLabelDevice(watching, session.scale)  # also if cancelled
    device = RecordingDevice(metered, lambda: _time_left_s(request, started_s))
    try:
        left_s = _time_left_s(request, started_s)
        cancel_after_s = None if left_s is None else left_s + CANCEL_GRACE_S
        with cancel_after(session.worker.cancel, cancel_after_s, watchdog), session.here.board.hold():
            context = attach_progress(
                _build_context(session, request=request, service=service, attempts=attempts, device=device),
                reporter,
                session.steps,
            )
            training = WorkerTraining(
                session.worker, arrays=arrays, share=None, seed=seed, options=options, hear=_reply_handler(replies)
            )
            until = ProgressTraining(CancellableTraining(training, watchdog), reporter)
            result = run_round(
                context,
                goal=goal,
                measurements=request.state.measurements,
                link=link,
                training=until,
                peer_measurements=request.shared,
            )
    except WorkerFailed as error:
        if not watchdog.is_over:
            raise
        logger.info("%s was cancelled in round %s: %s", session.board.name, request.round, error)
        done = 0 if training is None else training.done
        after_s, memory = time.monotonic() - started_s, attempts.memory_history
        cut = _answer_cancelled(
            session, request=request, measured=device.measured, done=done, after_s=after_s, memory=memory
        )
        return dataclasses.replace(cut, trace=shift_trace(watching.build_trace(), link.down_s)), None
    after_s, peak_mb = time.monotonic() - started_s, training.peak_mb
    reply, phases = _build_reply(attempts, request, context, result, link=link, peak_mb=peak_mb, after_s=after_s)
    return dataclasses.replace(reply, trace=watching.build_trace(*phases)), result.trained


def _build_reply(
    attempts: MemoryAttempts,
    request: RequestMessage,
    context: RoundContext,
    result: RoundResult,
    *,
    link: LinkUse,
    peak_mb: float | None,
    after_s: float,
) -> tuple[ReplyMessage, tuple[RoundPhase, RoundPhase]]:
    """Build the untraced reply and the link phases of a round that ended ``after_s`` seconds after its start."""
    session = attempts.scaled_session
    report = build_report(
        result,
        context,
        request.round,
        link,
        asked_steps=session.steps,
        samples=session.samples,
        temperature_c=session.here.hottest_c(),
        memory=attempts.summarize_use(peak_mb),
    )
    whole = request.cancel_s is None or report.steps == report.asked_steps
    error = None if whole else _explain_cancellation(report.steps, session, after_s)
    state = next_board_state(request, result, report, attempts.update_history(peak_mb))
    reply = ReplyMessage(session.board.name, result.front, report, state, error=error, cut=not whole)
    return reply, build_link_phases(report, context.waiting_mode)


def _time_left_s(request: RequestMessage, started_s: float) -> float | None:
    """Return the seconds until the reply is no longer needed, or None without a limit."""
    return None if request.cancel_s is None else max(0.0, request.cancel_s - (time.monotonic() - started_s))


def _explain_cancellation(done: int, session: BoardSession, after_s: float) -> str:
    progress = f"{done} of {session.steps} minibatches done when the round's time was over"
    return f"cancelled after {after_s:.0f} s: {progress}"


def _answer_cancelled(
    session: BoardSession,
    request: RequestMessage,
    measured: Sequence[Measurement],
    done: int,
    after_s: float,
    memory: tuple[MemoryObservation, ...],
) -> ReplyMessage:
    """Return the reply of a client that was cancelled within a step: no report, but its earlier measurements.

    ``memory`` is its memory history at that time.
    """
    state = dataclasses.replace(
        request.state,
        measurements=(*request.state.measurements, *measured),
        temperature_c=session.here.hottest_c(),
        rested_at_s=request.start_s + after_s,
        memory=memory,
    )
    return ReplyMessage(session.board.name, state=state, error=_explain_cancellation(done, session, after_s), cut=True)


def _install_service(
    session: BoardSession, request: RequestMessage, attempts: MemoryAttempts
) -> InstalledService | None:
    """Plan the board's service and install it in its worker; None if its fleet entry has none."""
    with session.here.board.hold():
        service = _plan_service(session, request, attempts)
    if service is not None:
        seed = derive_seed(session.experiment.seed, session.board.name, "requests")
        install_service(session.worker, service, build_task_request(session.experiment), seed)
    return service


def _plan_service(session: BoardSession, request: RequestMessage, attempts: MemoryAttempts) -> InstalledService | None:
    """Plan the board's standing service for this round; None if its fleet entry has none."""
    spec, own_measurements = session.board.entry.serving, request.state.measurements
    if spec is None:
        return None
    device, candidates = session.here.catalogued, _list_candidates(session)
    pinned = choose_waiting_mode(request.policy, session.here.board.spec, candidates)
    stay = (session.here.board.spec.maxn, *((pinned,) if request.policy.startswith("preset:") else ()))
    inner = attempts.rescale_predictor(load_predictor(session.experiment.predictor, _build_knowledge(session)))
    return plan_installed_service(
        spec, device=device, candidates=candidates, inner=inner, own_measurements=own_measurements, stay=stay
    )


def _wrap_with_service(
    session: BoardSession, service: InstalledService | None, replies: ServiceReplies | None
) -> Device:
    """Return the board's device, with the service's statistics in its measurements if there is a service."""
    if service is None or replies is None:
        return session.here.board
    return ServiceDevice(session.here.board, replies, service.round_service.while_idle)


def _build_tracing_device(session: BoardSession, attempts: MemoryAttempts, device: Device) -> TracingDevice:
    """Wrap ``device`` to keep sensor samples, starting with the round's first attempt."""
    sampler = session.here.sampler
    watching = TracingDevice(device, sampler.samples_between, RealClock(), sampler.period_s)
    watching.add_lost_time(attempts.lost_s)
    return watching


def _reply_handler(replies: ServiceReplies | None) -> Callable[[Mapping[str, Any]], None]:
    return (lambda _reply: None) if replies is None else replies.add_reply


def _build_knowledge(session: BoardSession) -> PriorKnowledge:
    """Return the predictor's prior knowledge of this board."""
    spec, workload = session.here.board.spec, build_workload(session.board.entry, session.experiment.workload)
    priors = tuple(prior.coefficients for prior in list_priors(session.here.catalogued, workload))
    references = load_references(session.board, session.experiment.workload)
    return PriorKnowledge(spec.maxn, priors, references, session.here.board.idle_w(spec.maxn))


def _build_context(
    session: BoardSession,
    request: RequestMessage,
    service: InstalledService | None,
    attempts: MemoryAttempts,
    device: Device | None = None,
) -> RoundContext:
    """Build the context of a round, on ``device`` if it is not the board's own."""
    experiment, spec = session.experiment, session.here.board.spec
    candidates, knowledge = _list_candidates(session), _build_knowledge(session)
    inner = attempts.rescale_predictor(load_predictor(experiment.predictor, knowledge))
    context = RoundContext(
        session.board.name,
        device=device or session.here.board,
        predictor=inner,
        policy=load_policy(request.policy),
        workload=build_workload(session.board.entry, experiment.workload),
        candidates=candidates,
        fastest_mode=spec.maxn,
        waiting_mode=_choose_waiting_mode(session, request, candidates, service),
        exploration=experiment.exploration,
        make_explorer=lambda modes: load_explorer(PROBE_EXPLORER, modes, knowledge),
        step_budgets_s=request.state.allowed_s,
        includes_low_power=request.policy == POWER_PLANNING_POLICY,
    )
    beside = context if service is None else attach_service(context, service.round_service, inner)
    if attempts.scaling is None or attempts.attempt is None:
        return beside
    return apply_scale(beside, attempts.scaling, attempts.attempt, request.state)


def _choose_waiting_mode(
    session: BoardSession, request: RequestMessage, candidates: Modes, service: InstalledService | None
) -> PowerMode:
    """Choose the mode in which the board waits, by the idle power of its kind if it serves meanwhile."""
    spec = session.here.board.spec
    if service is None:
        return choose_waiting_mode(request.policy, spec, candidates)
    idle_w = mode_idle_power_w(
        session.here.catalogued, build_workload(session.board.entry, session.experiment.workload), candidates
    )
    return choose_serving_wait_mode(service.round_service, request.policy, spec, idle_w)


def _list_candidates(session: BoardSession) -> Modes:
    """Return the modes that may be chosen, including the board's presets."""
    spec = session.here.board.spec
    everything = build_grid(spec)
    return Modes(everything.knobs[mask_candidates_and_presets(everything, spec.presets.values())])
