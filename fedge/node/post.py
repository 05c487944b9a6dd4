"""What a board answers a message with: itself as it stands, its entry in the fleet, its worker with its samples."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge import rounds, workloads
from fedge.devices.here import Here, board_here
from fedge.errors import BadInput
from fedge.experiment import Board, Experiment, boards
from fedge.fleetsim.boards import link_of
from fedge.node.samples import source_of
from fedge.node.settings import NodeSettings
from fedge.node.training import STRETCH_LIMIT_S, load
from fedge.rounds.fitting import steps_at
from fedge.types import LinkUse, Scale
from fedge.wire import Ask
from fedge.worker.client import Client


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """What one message is answered with: the board as it stands, its entry in the fleet, its worker, its samples."""

    experiment: Experiment
    board: Board
    here: Here
    worker: Client
    samples: int
    recorded: bool = False
    scale: Scale | None = None
    """What is trained at in this round, where that is not what the experiment asks for."""

    @property
    def steps(self) -> int:
        """Minibatches in the board's share of a round."""
        work = self.experiment.workload
        steps = rounds.steps_of(self.samples, work.batch_size, work.local_epochs)
        return steps if self.scale is None else steps_at(steps, Scale(work.batch_size), self.scale)

    def at(self, scale: Scale | None) -> Post:
        """The same post at another scale."""
        return self if scale == self.scale else dataclasses.replace(self, scale=scale)

    def link(self, ask: Ask) -> LinkUse:
        """The transfer of the model, as the fleet's entry describes the board's network."""
        return link_of(self.board.entry.link).transfer(ask.model_bytes)


@contextmanager
def post_of(experiment: Experiment, settings: NodeSettings) -> Iterator[Post]:
    """The board's post, its worker ready; raises ``BadInput`` for what the experiment or the settings have wrong."""
    board = _entry(experiment, settings.board)
    task = task_of(experiment)
    source = source_of(experiment, board.index, settings.state_dir / "data", settings.data_folder)
    samples = load(settings.worker_socket, task, source)
    with closing(Client(settings.worker_socket, STRETCH_LIMIT_S)) as worker, board_here(settings.place) as here:
        yield Post(experiment, board, here, worker, samples, recorded=settings.root != "/")


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
