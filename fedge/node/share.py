"""A board's share of a run: its front before any round, and its part of a round, which it ends by itself in time."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedge import rounds
from fedge.clock import RealClock
from fedge.costs.layered import work_of
from fedge.errors import WorkerFailed
from fedge.explorers import explorer_for
from fedge.fleetsim.boards import idle_power, priors_of, references_of
from fedge.fleetsim.tracing import link_phases
from fedge.interfaces import Device
from fedge.modes import grid
from fedge.node.fitting import Tries
from fedge.node.noting import Noting
from fedge.node.post import Post, task_of
from fedge.node.serving import Heard, ServingDevice, Stood, install, stood
from fedge.node.tracing import Watching
from fedge.node.training import WorkerTraining
from fedge.node.watchdog import TrainingUntil, Watchdog, watched
from fedge.physics.knowledge import Knowledge
from fedge.policies import policy_for, waiting_mode
from fedge.predictors import predictor_for
from fedge.rounds.fitting import ScaledDevice, at_scale, options_at
from fedge.rounds.serving import beside_service, waiting_beside
from fedge.rounds.telling import TellingTraining, told_by
from fedge.seeds import derived_seed
from fedge.telemetry.telling import Teller
from fedge.telemetry.tracing import shifted
from fedge.types import Goal, Measurement, MemorySeen, Modes, NamedArrays, PowerMode, Scale, TrainResult
from fedge.wire import Answer, Ask

logger = logging.getLogger(__name__)

SPARE_S = 3.0
"""A board stops by itself between two stretches of minibatches when its time is over; so much later the worker is told
to stop within one, and nothing but the earlier measurements is left. Chosen by us."""


def front(post: Post, ask: Ask) -> tuple[Answer, None]:
    """What the board offers before any round, and how many samples it has."""
    with post.here.board.held():
        tries = Tries(post, ask)
        tries.begin()
        post = tries.here
        service = _service(post, ask, tries)
        player = _player(post, ask, service, tries)
        if service is not None:
            board = ServingDevice(post.here.board, Heard(service), service.duty.resting)
            player = dataclasses.replace(player, device=board)
        own = ask.state.measurements
        shared = rounds.believed(player, own, ask.shared)
        steps = post.steps + rounds.warm_up_steps(own)
        _, offered = rounds.offer(player, own, shared, steps, post.link(ask))
    return Answer(post.board.name, front=offered, samples=post.samples, recorded=post.recorded), None


def trained(post: Post, ask: Ask, arrays: NamedArrays, teller: Teller) -> tuple[Answer, TrainResult | None]:
    """The board's share of a round, or as much of it as there was time for; raises ``WorkerFailed`` and the like.

    A try that runs out of memory is followed by smaller ones at once.
    """
    started_s = time.monotonic()
    tries = Tries(post, ask)
    tries.begin()
    while True:
        begun_s = time.monotonic()
        try:
            answer, result = _tried(tries, ask, arrays, teller, started_s)
        except WorkerFailed as error:
            failed = tries.after(error, begun_s)
        else:
            return _foreseen(post, ask, tries, answer), result
        if failed is not None:
            return failed, None


def _foreseen(post: Post, ask: Ask, tries: Tries, answer: Answer) -> Answer:
    """The answer with a front of the scale that the next round will be tried at."""
    if answer.front is None or answer.state is None or not tries.changes(answer.state):
        return answer
    later, _ = front(post, dataclasses.replace(ask, state=answer.state))
    return dataclasses.replace(answer, front=later.front)


def _tried(
    tries: Tries, ask: Ask, arrays: NamedArrays, teller: Teller, started_s: float
) -> tuple[Answer, TrainResult | None]:
    """The board's share at the present try's scale, of a round that began at ``started_s``."""
    post = tries.here
    work, link = post.experiment.workload, post.link(ask)
    goal = dataclasses.replace(ask.goal or Goal(ask.policy, post.steps), steps=post.steps)
    seed = derived_seed(post.experiment.seed, post.board.name, ask.round, "train")
    options = options_at(work, post.steps, post.scale or Scale(work.batch_size), ask.proximal_mu)
    dog, training = Watchdog(), None
    service = _installed(post, ask, tries)
    heard = None if service is None else Heard(service)
    watching = _watching(post, tries, _beside(post, service, heard))
    metered = watching if post.scale is None else ScaledDevice(watching, post.scale)  # a cut tells the scale too
    device = Noting(metered, lambda: _left_s(ask, started_s))
    try:
        left_s = _left_s(ask, started_s)
        barks_s = None if left_s is None else left_s + SPARE_S
        with watched(post.worker.cancel, barks_s, dog), post.here.board.held():
            player = told_by(_player(post, ask, service, tries, device), teller, post.steps)
            training = WorkerTraining(post.worker, arrays, None, seed, options, hear=_ear(heard))
            until = TellingTraining(TrainingUntil(training, dog), teller)
            played = rounds.play(player, goal, ask.state.measurements, link, until, ask.shared)
    except WorkerFailed as error:
        if not dog.over:
            raise
        logger.info("%s was cancelled in round %s: %s", post.board.name, ask.round, error)
        done = 0 if training is None else training.done
        cut = _cut(post, ask, device.measured, done, time.monotonic() - started_s, tries.seen)
        return dataclasses.replace(cut, trace=shifted(watching.trace(), link.down_s)), None
    report = rounds.report_of(
        played,
        player,
        ask.round,
        link,
        asked_steps=post.steps,
        samples=post.samples,
        temperature_c=post.here.hottest_c(),
        memory=tries.use(training.peak_mb),
    )
    whole = ask.cancel_s is None or report.steps == report.asked_steps
    told = None if whole else _too_late(report.steps, post, time.monotonic() - started_s)
    state = rounds.state_after(ask, played, report, tries.learnt(training.peak_mb))
    trace = watching.trace(*link_phases(report, player.waiting))
    return Answer(post.board.name, played.front, report, state, error=told, cut=not whole, trace=trace), played.trained


def _left_s(ask: Ask, started_s: float) -> float | None:
    """Seconds until the reply is of no use any more."""
    return None if ask.cancel_s is None else max(0.0, ask.cancel_s - (time.monotonic() - started_s))


def _too_late(done: int, post: Post, after_s: float) -> str:
    told = f"{done} of {post.steps} minibatches done when the round's time was over"
    return f"cancelled after {after_s:.0f} s: {told}"


def _cut(
    post: Post, ask: Ask, measured: Sequence[Measurement], done: int, after_s: float, memory: tuple[MemorySeen, ...]
) -> Answer:
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
    return Answer(post.board.name, state=state, error=_too_late(done, post, after_s), cut=True)


def _installed(post: Post, ask: Ask, tries: Tries) -> Stood | None:
    """The board's standing service, standing in its worker; None where its entry has none."""
    with post.here.board.held():
        service = _service(post, ask, tries)
    if service is not None:
        seed = derived_seed(post.experiment.seed, post.board.name, "requests")
        install(post.worker, service, task_of(post.experiment), seed)
    return service


def _service(post: Post, ask: Ask, tries: Tries) -> Stood | None:
    """What the board's standing service asks of it in this round."""
    spec, own = post.board.entry.serving, ask.state.measurements
    if spec is None:
        return None
    device, candidates = post.here.catalogued, _candidates(post)
    pinned = waiting_mode(ask.policy, post.here.board.spec, candidates)
    stay = (post.here.board.spec.maxn, *((pinned,) if ask.policy.startswith("preset:") else ()))
    inner = tries.carried(predictor_for(post.experiment.predictor, _knowledge(post)))
    return stood(spec, device, candidates, inner, own, stay)


def _beside(post: Post, service: Stood | None, heard: Heard | None) -> Device:
    """The board, with the service's part in what it measures."""
    if service is None or heard is None:
        return post.here.board
    return ServingDevice(post.here.board, heard, service.duty.resting)


def _watching(post: Post, tries: Tries, device: Device) -> Watching:
    """``device`` with its sensors' samples kept, from the first of the round's tries on."""
    sampler = post.here.sampler
    watching = Watching(device, sampler.samples, RealClock(), sampler.period_s)
    watching.lost(tries.lost_s)
    return watching


def _ear(heard: Heard | None) -> Callable[[Mapping[str, Any]], None]:
    return (lambda _reply: None) if heard is None else heard.hear


def _knowledge(post: Post) -> Knowledge:
    """What a predictor is told of this board beforehand."""
    spec, workload = post.here.board.spec, work_of(post.board.entry, post.experiment.workload)
    priors = tuple(prior.coefficients for prior in priors_of(post.here.catalogued, workload))
    references = references_of(post.board, post.experiment.workload)
    return Knowledge(spec.maxn, priors, references, post.here.board.idle_w(spec.maxn))


def _player(post: Post, ask: Ask, service: Stood | None, tries: Tries, device: Device | None = None) -> rounds.Player:
    """The player of a round, on ``device`` where that is not the board itself."""
    experiment, spec = post.experiment, post.here.board.spec
    candidates, knowledge = _candidates(post), _knowledge(post)
    inner = tries.carried(predictor_for(experiment.predictor, knowledge))
    player = rounds.Player(
        post.board.name,
        device or post.here.board,
        inner,
        policy_for(ask.policy),
        work_of(post.board.entry, experiment.workload),
        candidates,
        spec.maxn,
        _waiting(post, ask, candidates, service),
        experiment.exploration,
        lambda modes: explorer_for(rounds.EXPLORER, modes, knowledge),
        ask.state.allowed_s,
        ask.policy == rounds.WATTS,
    )
    beside = player if service is None else beside_service(player, service.duty, inner)
    if tries.means is None or tries.tried is None:
        return beside
    return at_scale(beside, tries.means, tries.tried, ask.state)


def _waiting(post: Post, ask: Ask, candidates: Modes, service: Stood | None) -> PowerMode:
    """The mode the board waits in, by the idle power of its kind where it serves meanwhile."""
    spec = post.here.board.spec
    if service is None:
        return waiting_mode(ask.policy, spec, candidates)
    idle_w = idle_power(post.here.catalogued, work_of(post.board.entry, post.experiment.workload), candidates)
    return waiting_beside(service.duty, ask.policy, spec, idle_w)


def _candidates(post: Post) -> Modes:
    """The board's own modes among which it chooses, its presets among them."""
    spec = post.here.board.spec
    everything = grid(spec)
    return Modes(everything.knobs[rounds.choosable_with(everything, spec.presets.values())])
