"""A real board's client: answers one message with its own power daemon, worker and sensors."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge import rounds, workloads
from fedge.costs.profiles import priors_for
from fedge.costs.workloads import work_of
from fedge.devices import catalogue
from fedge.devices.here import Here, board_here
from fedge.errors import BadInput, FedgeError, WorkerFailed
from fedge.experiment import Board, Experiment, boards
from fedge.explorers import explorer_for
from fedge.fleetsim.boards import link_of, references_of
from fedge.modes import grid
from fedge.node import claim
from fedge.node.noting import Noting
from fedge.node.samples import source_of
from fedge.node.settings import NodeSettings
from fedge.node.training import STRETCH_LIMIT_S, WorkerTraining, load
from fedge.node.watchdog import TrainingUntil, Watchdog, watched
from fedge.physics.knowledge import Knowledge
from fedge.policies import policy_for, waiting_mode
from fedge.predictors import predictor_for
from fedge.seeds import derived_seed
from fedge.types import Goal, LinkUse, Measurement, Modes, NamedArrays, TrainOptions, TrainResult
from fedge.wire import Answer, Ask
from fedge.worker.client import Client

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)
SPARE_S = 3.0
"""A board stops by itself between two stretches of minibatches when its time is over; so much later the worker is told to
stop within one, and nothing but the earlier measurements is left. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """What one message is answered with: the board as it stands, its entry in the fleet, its worker, its samples."""

    experiment: Experiment
    board: Board
    here: Here
    worker: Client
    samples: int

    @property
    def steps(self) -> int:
        """Minibatches in the board's share of a round."""
        work = self.experiment.workload
        return rounds.steps_of(self.samples, work.batch_size, work.local_epochs)

    def link(self, ask: Ask) -> LinkUse:
        """The transfer of the model, as the fleet's entry describes the board's network."""
        return link_of(self.board.entry.link).transfer(ask.model_bytes)


def answer(
    experiment: Experiment,
    settings: NodeSettings,
    ask: Ask,
    arrays: NamedArrays | None,
    wall_s: Callable[[], float] = time.time,
) -> tuple[Answer, TrainResult | None]:
    """What this board says to ``ask``; whatever fails on the board is an answer with ``error``.

    It works for one run at a time; ``wall_s`` is the unix time by which their claims are kept.
    """
    path, name = settings.state_dir / claim.NAME, settings.board
    if ask.kind == "bye":
        claim.release(path, ask.run)
        return Answer(name), None
    standing = claim.read(path)
    left_s = claim.left_s(standing, ask.run, wall_s())
    if standing is not None and left_s > 0:
        return Answer(name, error=claim.refusal(name, standing, left_s), held_s=left_s), None
    if ask.kind == "hello":
        return Answer(name), None
    try:
        with _claimed(path, ask, wall_s), _post(experiment, settings) as post:
            return _front(post, ask) if ask.kind == "front" else _round(post, ask, arrays or {})
    except Exception as error:
        logger.warning("%s failed in round %s", name, ask.round, exc_info=error)
        return Answer(name, error=reason_of(error, settings)), None


@contextmanager
def _claimed(path: Path, ask: Ask, wall_s: Callable[[], float]) -> Iterator[None]:
    """The board as the asking run's, from now on and for a while after the answer."""
    if not ask.run:
        yield
        return
    claim.make(path, ask.run, ask.claim_s, wall_s())
    try:
        yield
    finally:
        try:
            claim.make(path, ask.run, ask.claim_s, wall_s())
        except OSError as error:  # the one made before still stands for a while, and the work is done
            logger.warning("%s cannot be renewed: %s", path, error)


def reason_of(error: BaseException, settings: NodeSettings) -> str:
    """Why an answer failed, in words; a full disk by its name, whatever was being written."""
    full = next((each for each in _causes(error) if isinstance(each, OSError) and each.errno in FULL), None)
    if full is not None:
        return f"no space left on {settings.board} ({full.filename or settings.state_dir}): free some"
    return str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@contextmanager
def _post(experiment: Experiment, settings: NodeSettings) -> Iterator[Post]:
    board = _entry(experiment, settings.board)
    task = task_of(experiment)
    source = source_of(experiment, board.index, settings.state_dir / "data", settings.data_folder)
    samples = load(settings.worker_socket, task, source)
    with closing(Client(settings.worker_socket, STRETCH_LIMIT_S)) as worker, board_here(settings.place) as here:
        yield Post(experiment, board, here, worker, samples)


def _entry(experiment: Experiment, name: str) -> Board:
    named = {board.name: board for board in boards(experiment)}
    if name not in named:
        raise BadInput("fleet", f"a fleet without the board {name!r}", f"an entry for it; known: {', '.join(named)}")
    return named[name]


def task_of(experiment: Experiment) -> Mapping[str, Any]:
    """What the worker is told to train: one of fedge's tasks by name, or the user's own file with its hash."""
    name = experiment.workload.task
    if name in workloads.TASKS:
        return {"builtin": name}
    if not name.endswith(".py"):
        right = "one of fedge's tasks, or the path of a task file (.py), which the board's worker can load"
        raise BadInput("workload.task", repr(name), right)
    source = _shipped(Path(name)).read_bytes()
    return {"name": name, "source": source.decode("utf-8"), "sha256": hashlib.sha256(source).hexdigest()}


def _shipped(path: Path) -> Path:
    """The user's file: as the experiment names it, or, on a board, beside this very package, with which it came."""
    beside = Path(__file__).resolve().parents[2] / path.name
    found = next((each for each in (path, beside) if each.is_file()), None)
    if found is None:
        raise BadInput("workload.task", f"{path}, which is neither here nor in the run's app", "an existing task file")
    return found


def _front(post: Post, ask: Ask) -> tuple[Answer, None]:
    with post.here.board.held():
        player = _player(post, ask)
        own = ask.state.measurements
        shared = rounds.believed(player, own, ask.shared)
        steps = post.steps + rounds.warm_up_steps(own)
        _, front = rounds.offer(player, own, shared, steps, post.link(ask))
    return Answer(post.board.name, front=front, samples=post.samples), None


def _round(post: Post, ask: Ask, arrays: NamedArrays) -> tuple[Answer, TrainResult | None]:
    work, link = post.experiment.workload, post.link(ask)
    goal = dataclasses.replace(ask.goal or Goal(ask.policy, post.steps), steps=post.steps)
    seed = derived_seed(post.experiment.seed, post.board.name, ask.round, "train")
    options = TrainOptions(post.steps, work.batch_size, work.learning_rate, work.momentum, ask.proximal_mu)
    dog, training = Watchdog(), None
    started_s = time.monotonic()
    device = Noting(post.here.board, lambda: _left_s(ask, started_s))
    try:
        barks_s = None if ask.cancel_s is None else ask.cancel_s + SPARE_S
        with watched(post.worker.cancel, barks_s, dog), post.here.board.held():
            player = dataclasses.replace(_player(post, ask), device=device)
            training = WorkerTraining(post.worker, arrays, None, seed, options)
            until = TrainingUntil(training, dog)
            played = rounds.play(player, goal, ask.state.measurements, link, until, ask.shared)
    except WorkerFailed as error:
        if not dog.over:
            raise
        logger.info("%s was cancelled in round %s: %s", post.board.name, ask.round, error)
        done = 0 if training is None else training.done
        return _cut(post, ask, device.measured, done, time.monotonic() - started_s), None
    report = rounds.report_of(
        played,
        player,
        ask.round,
        link,
        asked_steps=post.steps,
        samples=post.samples,
        temperature_c=post.here.hottest_c(),
    )
    whole = ask.cancel_s is None or report.steps == report.asked_steps
    told = None if whole else _too_late(report.steps, post, time.monotonic() - started_s)
    state = rounds.state_after(ask, played, report)
    return Answer(post.board.name, played.front, report, state, error=told, cut=not whole), played.trained


def _left_s(ask: Ask, started_s: float) -> float | None:
    """Seconds until the reply is of no use any more."""
    return None if ask.cancel_s is None else max(0.0, ask.cancel_s - (time.monotonic() - started_s))


def _too_late(done: int, post: Post, after_s: float) -> str:
    told = f"{done} of {post.steps} minibatches done when the round's time was over"
    return f"cancelled after {after_s:.0f} s: {told}"


def _cut(post: Post, ask: Ask, measured: Sequence[Measurement], done: int, after_s: float) -> Answer:
    """The answer of a board that was stopped within a minibatch: no report, but what it had measured before."""
    state = dataclasses.replace(
        ask.state,
        measurements=(*ask.state.measurements, *measured),
        temperature_c=post.here.hottest_c(),
        rested_at_s=ask.start_s + after_s,
    )
    return Answer(post.board.name, state=state, error=_too_late(done, post, after_s), cut=True)


def _player(post: Post, ask: Ask) -> rounds.Player:
    experiment, spec = post.experiment, post.here.board.spec
    workload = work_of(post.board.entry, experiment.workload)
    candidates = _candidates(post)
    specs = catalogue.load_catalogue()
    priors = tuple(prior.coefficients for prior in priors_for(post.here.catalogued, workload.name, specs))
    references = references_of(post.board, experiment.workload)
    knowledge = Knowledge(spec.maxn, priors, references, post.here.board.idle_w(spec.maxn))
    return rounds.Player(
        post.board.name,
        post.here.board,
        predictor_for(experiment.predictor, knowledge),
        policy_for(ask.policy),
        workload,
        candidates,
        spec.maxn,
        waiting_mode(ask.policy, spec, candidates),
        experiment.exploration,
        lambda modes: explorer_for(rounds.EXPLORER, modes, knowledge),
        ask.state.allowed_s,
        ask.policy == rounds.WATTS,
    )


def _candidates(post: Post) -> Modes:
    """The board's own modes among which it chooses, its presets among them."""
    spec = post.here.board.spec
    everything = grid(spec)
    return Modes(everything.knobs[rounds.choosable_with(everything, spec.presets.values())])
