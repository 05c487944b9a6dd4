"""A real client's round: probing and training on the board, also if memory runs out or the round is cancelled."""

from __future__ import annotations

import dataclasses
import logging
import time
from dataclasses import dataclass, field

from fedge.client.answers import Answer, answer_evaluation, build_reply, first_attempt, run_attempts
from fedge.client.board_session import BoardSession, build_task_request
from fedge.client.client_setup import (
    ClientSetup,
    RoundConditions,
    begin_requested_round,
    build_first_front,
    build_round,
    plan_conditions,
)
from fedge.client.memory_scaling import ScaleAttempt, build_train_options
from fedge.client.prediction_requests import Asking, run_alone
from fedge.client.round import finish_round
from fedge.client.round_state import RoundContext, RoundResult, RoundState
from fedge.client.round_trace import build_link_phases
from fedge.client.tracing_device import InstalledService, ServiceReplies, TracingDevice, install_service
from fedge.client.worker_training import (
    CancellableTraining,
    Watchdog,
    WorkerTraining,
    cancel_after,
    ignore_reply,
    translate_worker_errors,
)
from fedge.clock import RealClock
from fedge.errors import NarrowingRefused, OutOfMemory, WorkerFailed
from fedge.seeds import derive_seed
from fedge.telemetry.progress_files import ProgressReporter
from fedge.telemetry.trace_operations import shift_trace
from fedge.types import Measurement, NamedArrays, TrainingScale, add_measurements
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.exit_causes import OOM_KILLED

logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 3.0
# After its time limit a client stops by itself between two stretches of steps; after this grace period the worker is
# cancelled within a stretch, and only earlier measurements are kept. Default: longer than a stretch of half a second.
OOM, DIED, NARROW = "oom", "died", "narrow"
# Kinds of worker errors: out of memory (the worker goes on), worker died, network cannot be narrowed.


def drop_unlike_knowledge(session: BoardSession, request: RequestMessage) -> RequestMessage:
    """Return the request without what it recalls of recorded folders on hardware, and without the reverse."""
    if request.recalls_recorded in (None, session.recorded):
        return request
    state = dataclasses.replace(request.state, doubts_recalled=True)
    return dataclasses.replace(request, recalled=(), shared=(), references=(), state=state)


def answer_front(session: BoardSession, request: RequestMessage) -> Answer:
    """Return the client's first offer and its number of samples, before any round."""
    with session.here.board.hold():
        setup = session.build_setup(request)
        attempt = first_attempt(setup, request.state)
        front = run_alone(
            build_first_front(setup, request, attempt, lambda conditions: _open_device(session, conditions))
        )
    return ReplyMessage(session.board.name, front=front, samples=session.samples), None


def evaluate_model(session: BoardSession, request: RequestMessage, arrays: NamedArrays) -> Answer:
    """Evaluate the model on the board's test samples.

    Raises:
        WorkerFailed: If the worker fails.
    """

    def evaluate() -> tuple[float, float, int]:
        with translate_worker_errors():
            reply = session.worker.evaluate(arrays)
        return float(reply["loss"]), float(reply["accuracy"]), int(reply["samples"])

    with session.here.board.hold():
        return answer_evaluation(
            session.build_setup(request), request, session.here.board, batches=1, evaluate=evaluate
        ), None


def answer_round(
    session: BoardSession, request: RequestMessage, arrays: NamedArrays, reporter: ProgressReporter
) -> Answer:
    """Run the client's share of a round, or as much of it as time allows.

    An attempt that runs out of memory is followed by smaller ones at once.

    Returns:
        The reply and the training result; the latter is None if nothing was trained.

    Raises:
        WorkerFailed: If the worker fails for a reason other than memory or cancellation.
    """
    running = _RealRound(session, request=request, arrays=arrays, reporter=reporter, started_s=time.monotonic())
    with session.here.board.hold():
        setup = session.build_setup(request)
        return run_alone(
            run_attempts(setup, request, running.run_attempt, lambda conditions: _open_device(session, conditions))
        )


def _open_device(
    session: BoardSession, conditions: RoundConditions, replies: ServiceReplies | None = None
) -> TracingDevice:
    """Return the board with its sensors traced and its service included."""
    sampler, service = session.here.sampler, conditions.service
    return TracingDevice(
        session.here.board,
        sampler.samples_between,
        RealClock(),
        sampler.period_s,
        lost_s=conditions.lost_s,
        resting=None if service is None else service.while_idle,
        replies=replies,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _RealRound:
    """A training request on a real board, which began at the monotonic time ``started_s``."""

    session: BoardSession
    request: RequestMessage
    arrays: NamedArrays
    reporter: ProgressReporter
    started_s: float

    def run_attempt(self, setup: ClientSetup, attempt: ScaleAttempt | None) -> Asking[Answer]:
        """Run the round at one training scale.

        Raises:
            OutOfMemory: If a step needs more memory than the board has.
            NarrowingRefused: If the worker cannot narrow the network.
            WorkerFailed: If the worker fails for a reason other than memory or cancellation.
        """
        began_s = time.monotonic()
        conditions = plan_conditions(setup, self.request, attempt)
        device = _open_device(self.session, conditions, self._install_service(conditions))
        context = build_round(setup, conditions, device, reporter=self.reporter, time_left_s=self._time_left_s)
        training = _RoundTraining()
        try:
            result = yield from self._train(setup, conditions, context, device=device, training=training)
        except WorkerFailed as error:
            if training.watchdog.is_over:
                logger.info("%s was cancelled in round %s: %s", self.session.board.name, self.request.round, error)
                return self._answer_cancelled(setup, conditions, device=device, training=training), None
            failure = _find_memory_error(error, attempt, time.monotonic() - began_s)
            if failure is None:
                raise
            raise failure from error
        return self._build_reply(
            setup, conditions, context, device=device, result=result, peak_mb=training.peak_mb
        ), result.trained

    def _install_service(self, conditions: RoundConditions) -> ServiceReplies | None:
        """Install the board's service in its worker; None if its fleet entry has none."""
        session, spec = self.session, self.session.board.entry.serving
        if spec is None or conditions.service is None:
            return None
        service = InstalledService(spec, conditions.service.while_training.demand.batch_sizes[0])
        seed = derive_seed(session.experiment.seed, session.board.name, "requests")
        install_service(session.worker, service, build_task_request(session.experiment), seed)
        return ServiceReplies(service)

    def _train(
        self,
        setup: ClientSetup,
        conditions: RoundConditions,
        context: RoundContext,
        device: TracingDevice,
        training: _RoundTraining,
    ) -> Asking[RoundResult]:
        worker, work = self.session.worker, self.session.experiment.workload
        scale = conditions.scale or TrainingScale(work.batch_size)
        options = build_train_options(work, setup.round_steps(self.request, context.scale), scale, self.request)
        seed = derive_seed(self.session.experiment.seed, setup.board.name, self.request.round, "train")
        left_s, replies = self._time_left_s(), device.service_replies
        cancel_after_s = None if left_s is None else left_s + CANCEL_GRACE_S
        with cancel_after(worker.cancel, cancel_after_s, training.watchdog):
            training.worker = WorkerTraining(
                worker,
                arrays=self.arrays,
                seed=seed,
                options=options,
                hear=ignore_reply if replies is None else replies.add_reply,
            )
            cancellable = CancellableTraining(training.worker, training.watchdog)
            training.state = yield from begin_requested_round(setup, self.request, context, cancellable)
            return (yield from finish_round(training.state))

    def _build_reply(
        self,
        setup: ClientSetup,
        conditions: RoundConditions,
        context: RoundContext,
        device: TracingDevice,
        result: RoundResult,
        peak_mb: float | None,
    ) -> ReplyMessage:
        after_s, hottest_c = time.monotonic() - self.started_s, self.session.here.hottest_c()
        reply, report = build_reply(
            setup,
            conditions,
            context=context,
            result=result,
            temperature_c=hottest_c,
            peak_mb=peak_mb,
        )
        trace = device.build_trace(*build_link_phases(report, context.waiting_mode))
        whole = self.request.cancel_s is None or report.steps == report.asked_steps
        error = None if whole else _explain_cancellation(report.steps, report.asked_steps, after_s)
        return dataclasses.replace(reply, error=error, cut=not whole, trace=trace)

    def _answer_cancelled(
        self, setup: ClientSetup, conditions: RoundConditions, device: TracingDevice, training: _RoundTraining
    ) -> ReplyMessage:
        """Return the reply of a client that was cancelled within a step: no report, but its earlier measurements."""
        before, attempt, after_s = self.request.state, conditions.attempt, time.monotonic() - self.started_s
        state = dataclasses.replace(
            before,
            measurements=add_measurements(before.measurements, training.parts),
            temperature_c=self.session.here.hottest_c(),
            rested_at_s=self.request.start_s + after_s,
            memory=before.memory if attempt is None else attempt.observations,
        )
        error = _explain_cancellation(training.done, setup.round_steps(self.request, conditions.scale), after_s)
        trace = shift_trace(device.build_trace(), setup.transfer(self.request, conditions.scale).down_s)
        return ReplyMessage(setup.board.name, state=state, error=error, cut=True, trace=trace)

    def _time_left_s(self) -> float | None:
        """Return the seconds until the reply is no longer needed, or None without a limit."""
        if self.request.cancel_s is None:
            return None
        return max(0.0, self.request.cancel_s - (time.monotonic() - self.started_s))


@dataclass(slots=True, eq=False)
class _RoundTraining:
    """State of a training, read once it has failed or ended."""

    watchdog: Watchdog = field(default_factory=Watchdog)
    worker: WorkerTraining | None = None
    state: RoundState | None = None

    @property
    def done(self) -> int:
        """Return the number of steps done."""
        return 0 if self.worker is None else self.worker.done

    @property
    def peak_mb(self) -> float | None:
        """Return the worker's peak memory in MB; None if unknown."""
        return None if self.worker is None else self.worker.peak_mb

    @property
    def parts(self) -> tuple[Measurement, ...]:
        """Return the measurements of the parts that were completed."""
        return () if self.state is None else tuple(self.state.parts)


def _find_memory_error(
    error: WorkerFailed, attempt: ScaleAttempt | None, lost_s: float
) -> OutOfMemory | NarrowingRefused | None:
    """Return the memory-related meaning of a worker's failure, or None if it has none."""
    if attempt is None:
        return None
    if error.kind == NARROW and attempt.scale.width < 1.0:
        return NarrowingRefused(str(error))
    if error.kind == OOM or (error.kind == DIED and OOM_KILLED in str(error)):
        # A restarted trainer has no task loaded, so it cannot try again at once.
        return OutOfMemory(str(error), lost_s, detail=str(error), can_retry=error.kind != DIED)
    return None


def _explain_cancellation(done: int, steps: int, after_s: float) -> str:
    return f"cancelled after {after_s:.0f} s: {done} of {steps} steps done when the round's time was over"
