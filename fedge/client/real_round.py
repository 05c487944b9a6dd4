"""A device that works no longer than it may, and remembers what it measured, also when the round is broken off."""

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
from fedge.client.round_context import POWER_PLANNING_POLICY, PROBE_EXPLORER, RoundContext
from fedge.client.round_report import build_report, next_board_state
from fedge.client.round_trace import TracingDevice, build_link_phases
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
    """A ``fedge.protocols.Device`` in front of another; ``measured`` are all its measurements so far.

    ``left_s`` tells how many seconds may still be worked; None: as many as it takes.
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
"""A board stops by itself between two stretches of minibatches when its time is over; so much later the worker is told
to stop within one, and nothing but the earlier measurements is left. Chosen by us."""


def answer_front(post: BoardSession, ask: RequestMessage) -> tuple[ReplyMessage, None]:
    """What the board offers before any round, and how many samples it has."""
    with post.here.board.hold():
        tries = MemoryAttempts(post, ask)
        tries.begin()
        post = tries.scaled_session
        service = _plan_service(post, ask, tries)
        player = _build_context(post, ask, service, tries)
        if service is not None:
            board = ServiceDevice(post.here.board, ServiceReplies(service), service.round_service.while_idle)
            player = dataclasses.replace(player, device=board)
        own = ask.state.measurements
        shared = select_consistent_peers(player, own, ask.shared)
        steps = post.steps + warm_up_steps(own)
        _, offered = build_offer(player, own=own, shared=shared, steps=steps, link=post.link_use(ask))
    return ReplyMessage(post.board.name, front=offered, samples=post.samples, recorded=post.recorded), None


def answer_round(
    post: BoardSession, ask: RequestMessage, arrays: NamedArrays, teller: ProgressReporter
) -> tuple[ReplyMessage, TrainResult | None]:
    """The board's share of a round, or as much of it as there was time for; raises ``WorkerFailed`` and the like.

    A try that runs out of memory is followed by smaller ones at once.
    """
    started_s = time.monotonic()
    tries = MemoryAttempts(post, ask)
    tries.begin()
    while True:
        begun_s = time.monotonic()
        try:
            answer, result = _run_attempt(tries, ask=ask, arrays=arrays, teller=teller, started_s=started_s)
        except WorkerFailed as error:
            failed = tries.handle_failure(error, begun_s)
        else:
            return _update_front(post, ask, tries, answer), result
        if failed is not None:
            return failed, None


def _update_front(post: BoardSession, ask: RequestMessage, tries: MemoryAttempts, answer: ReplyMessage) -> ReplyMessage:
    """The answer with a front of the scale that the next round will be tried at."""
    if answer.front is None or answer.state is None or not tries.will_change_scale(answer.state):
        return answer
    later, _ = answer_front(post, dataclasses.replace(ask, state=answer.state))
    return dataclasses.replace(answer, front=later.front)


def _run_attempt(
    tries: MemoryAttempts, ask: RequestMessage, arrays: NamedArrays, teller: ProgressReporter, started_s: float
) -> tuple[ReplyMessage, TrainResult | None]:
    """The board's share at the present try's scale, of a round that began at ``started_s``."""
    post = tries.scaled_session
    work, link = post.experiment.workload, post.link_use(ask)
    goal = dataclasses.replace(ask.goal or RoundGoal(ask.policy, post.steps), steps=post.steps)
    seed = derive_seed(post.experiment.seed, post.board.name, ask.round, "train")
    options = build_train_options(work, post.steps, post.scale or TrainingScale(work.batch_size), ask.proximal_mu)
    dog, training = Watchdog(), None
    service = _install_service(post, ask, tries)
    heard = None if service is None else ServiceReplies(service)
    watching = _build_tracing_device(post, tries, _wrap_with_service(post, service, heard))
    metered = watching if post.scale is None else ScaleLabelDevice(watching, post.scale)  # a cut tells the scale too
    device = RecordingDevice(metered, lambda: _time_left_s(ask, started_s))
    try:
        left_s = _time_left_s(ask, started_s)
        barks_s = None if left_s is None else left_s + CANCEL_GRACE_S
        with cancel_after(post.worker.cancel, barks_s, dog), post.here.board.hold():
            player = attach_progress(
                _build_context(post, ask=ask, service=service, tries=tries, device=device), teller, post.steps
            )
            training = WorkerTraining(
                post.worker, arrays=arrays, share=None, seed=seed, options=options, hear=_reply_handler(heard)
            )
            until = ProgressTraining(CancellableTraining(training, dog), teller)
            played = run_round(
                player, goal=goal, measurements=ask.state.measurements, link=link, training=until, shared=ask.shared
            )
    except WorkerFailed as error:
        if not dog.is_over:
            raise
        logger.info("%s was cancelled in round %s: %s", post.board.name, ask.round, error)
        done = 0 if training is None else training.done
        cut = _answer_cancelled(
            post,
            ask=ask,
            measured=device.measured,
            done=done,
            after_s=time.monotonic() - started_s,
            memory=tries.memory_history,
        )
        return dataclasses.replace(cut, trace=shift_trace(watching.build_trace(), link.down_s)), None
    report = build_report(
        played,
        player,
        ask.round,
        link,
        asked_steps=post.steps,
        samples=post.samples,
        temperature_c=post.here.hottest_c(),
        memory=tries.summarize_use(training.peak_mb),
    )
    whole = ask.cancel_s is None or report.steps == report.asked_steps
    told = None if whole else _explain_cancellation(report.steps, post, time.monotonic() - started_s)
    state = next_board_state(ask, played, report, tries.update_history(training.peak_mb))
    trace = watching.build_trace(*build_link_phases(report, player.waiting_mode))
    return ReplyMessage(
        post.board.name, played.front, report, state, error=told, cut=not whole, trace=trace
    ), played.trained


def _time_left_s(ask: RequestMessage, started_s: float) -> float | None:
    """Seconds until the reply is of no use any more."""
    return None if ask.cancel_s is None else max(0.0, ask.cancel_s - (time.monotonic() - started_s))


def _explain_cancellation(done: int, post: BoardSession, after_s: float) -> str:
    told = f"{done} of {post.steps} minibatches done when the round's time was over"
    return f"cancelled after {after_s:.0f} s: {told}"


def _answer_cancelled(
    post: BoardSession,
    ask: RequestMessage,
    measured: Sequence[Measurement],
    done: int,
    after_s: float,
    memory: tuple[MemoryObservation, ...],
) -> ReplyMessage:
    """The answer of a board that was stopped within a minibatch: no report, but what it had measured before.

    ``memory`` is what it knows of its memory by then.
    """
    state = dataclasses.replace(
        ask.state,
        measurements=(*ask.state.measurements, *measured),
        temperature_c=post.here.hottest_c(),
        rested_at_s=ask.start_s + after_s,
        memory=memory,
    )
    return ReplyMessage(post.board.name, state=state, error=_explain_cancellation(done, post, after_s), cut=True)


def _install_service(post: BoardSession, ask: RequestMessage, tries: MemoryAttempts) -> InstalledService | None:
    """The board's standing service, standing in its worker; None where its entry has none."""
    with post.here.board.hold():
        service = _plan_service(post, ask, tries)
    if service is not None:
        seed = derive_seed(post.experiment.seed, post.board.name, "requests")
        install_service(post.worker, service, build_task_request(post.experiment), seed)
    return service


def _plan_service(post: BoardSession, ask: RequestMessage, tries: MemoryAttempts) -> InstalledService | None:
    """What the board's standing service asks of it in this round."""
    spec, own = post.board.entry.serving, ask.state.measurements
    if spec is None:
        return None
    device, candidates = post.here.catalogued, _list_candidates(post)
    pinned = choose_waiting_mode(ask.policy, post.here.board.spec, candidates)
    stay = (post.here.board.spec.maxn, *((pinned,) if ask.policy.startswith("preset:") else ()))
    inner = tries.rescale_predictor(load_predictor(post.experiment.predictor, _build_knowledge(post)))
    return plan_installed_service(spec, device=device, candidates=candidates, inner=inner, own=own, stay=stay)


def _wrap_with_service(post: BoardSession, service: InstalledService | None, heard: ServiceReplies | None) -> Device:
    """The board, with the service's part in what it measures."""
    if service is None or heard is None:
        return post.here.board
    return ServiceDevice(post.here.board, heard, service.round_service.while_idle)


def _build_tracing_device(post: BoardSession, tries: MemoryAttempts, device: Device) -> TracingDevice:
    """``device`` with its sensors' samples kept, from the first of the round's tries on."""
    sampler = post.here.sampler
    watching = TracingDevice(device, sampler.samples_between, RealClock(), sampler.period_s)
    watching.add_lost_time(tries.lost_s)
    return watching


def _reply_handler(heard: ServiceReplies | None) -> Callable[[Mapping[str, Any]], None]:
    return (lambda _reply: None) if heard is None else heard.add_reply


def _build_knowledge(post: BoardSession) -> PriorKnowledge:
    """What a predictor is told of this board beforehand."""
    spec, workload = post.here.board.spec, build_workload(post.board.entry, post.experiment.workload)
    priors = tuple(prior.coefficients for prior in list_priors(post.here.catalogued, workload))
    references = load_references(post.board, post.experiment.workload)
    return PriorKnowledge(spec.maxn, priors, references, post.here.board.idle_w(spec.maxn))


def _build_context(
    post: BoardSession,
    ask: RequestMessage,
    service: InstalledService | None,
    tries: MemoryAttempts,
    device: Device | None = None,
) -> RoundContext:
    """The player of a round, on ``device`` where that is not the board itself."""
    experiment, spec = post.experiment, post.here.board.spec
    candidates, knowledge = _list_candidates(post), _build_knowledge(post)
    inner = tries.rescale_predictor(load_predictor(experiment.predictor, knowledge))
    player = RoundContext(
        post.board.name,
        device=device or post.here.board,
        predictor=inner,
        policy=load_policy(ask.policy),
        workload=build_workload(post.board.entry, experiment.workload),
        candidates=candidates,
        fastest_mode=spec.maxn,
        waiting_mode=_choose_waiting_mode(post, ask, candidates, service),
        exploration=experiment.exploration,
        make_explorer=lambda modes: load_explorer(PROBE_EXPLORER, modes, knowledge),
        step_budgets_s=ask.state.allowed_s,
        includes_low_power=ask.policy == POWER_PLANNING_POLICY,
    )
    beside = player if service is None else attach_service(player, service.round_service, inner)
    if tries.scaling is None or tries.attempt is None:
        return beside
    return apply_scale(beside, tries.scaling, tries.attempt, ask.state)


def _choose_waiting_mode(
    post: BoardSession, ask: RequestMessage, candidates: Modes, service: InstalledService | None
) -> PowerMode:
    """The mode the board waits in, by the idle power of its kind where it serves meanwhile."""
    spec = post.here.board.spec
    if service is None:
        return choose_waiting_mode(ask.policy, spec, candidates)
    idle_w = mode_idle_power_w(
        post.here.catalogued, build_workload(post.board.entry, post.experiment.workload), candidates
    )
    return choose_serving_wait_mode(service.round_service, ask.policy, spec, idle_w)


def _list_candidates(post: BoardSession) -> Modes:
    """The board's own modes among which it chooses, its presets among them."""
    spec = post.here.board.spec
    everything = build_grid(spec)
    return Modes(everything.knobs[mask_candidates_and_presets(everything, spec.presets.values())])
