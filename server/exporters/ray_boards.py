"""The boards of a fleet as named actors of a Ray cluster; as a program, it reads what to show from its standard input.

It is a separate program because Ray ends a process that has lost its cluster for a minute, which must not end a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

logger = logging.getLogger(__name__)

MAX_SERIES = 1000
"""Boards above which figures are summed by board kind; a default that bounds the number of time series."""
MAX_PENDING_CALLS = 10_000
"""Calls that may queue at an actor; further updates are dropped until it has caught up. A default that bounds
memory.
"""
FLEET_METRICS: dict[str, tuple[str, str]] = {
    "accuracy": ("fedge_accuracy_ratio", "The global model's accuracy"),
    "round": ("fedge_round", "The last round that is over"),
    "round_s": ("fedge_fleet_round_seconds", "The last round, on the fleet's clock"),
}
"""Field -> name and description of the metric."""
CLOSE_TIMEOUT_S = 3.0
"""Seconds in which actors process their last update before they are ended; a default that bounds the end of a run."""


@dataclass(frozen=True, slots=True)
class BoardFigures:
    """Figures of one board that are shown; None or an empty mode means no new value.

    Attributes:
        energy_j: Energy over the run so far, in joules.
        progress: Share of the steps that is done, 0 to 1.
        live: True if reported between two replies.
    """

    board: str
    device: str
    energy_j: float = 0.0
    power_w: float | None = None
    round_s: float | None = None
    progress: float | None = None
    temperature_c: float | None = None
    mode: str = ""
    live: bool = False


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Figures of the whole fleet after a round; ``energy_j`` is the total over the run so far."""

    round: int
    round_s: float
    energy_j: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """How boards are distributed over actors.

    Attributes:
        own_actors: Maximum number of boards that each get an actor; above it there is one actor per device.
    """

    run: str
    devices: Mapping[str, str]
    titles: Mapping[str, str]
    own_actors: int

    @property
    def by_kind(self) -> bool:
        """True if there are too many boards for one actor each."""
        return len(self.devices) > self.own_actors

    def actor_name(self, board: str) -> str:
        """Return the name of the actor that shows ``board``."""
        device = self.devices[board]
        title = self.titles.get(device, device)
        if not self.by_kind:
            return f"{board} ({title})"
        count = Counter(self.devices.values())[device]
        return f"{title} ({count} {'board' if count == 1 else 'boards'})"


class BoardActors:
    """The actors of one run, in their own namespace on the cluster that this process is connected to."""

    def __init__(self, cast: ActorLayout) -> None:
        from ray.util.metrics import Counter as Metric

        from server.exporters.ray_actor import RepeatedGauges

        self._cast, self._actors, self._last = cast, dict[str, Any](), dict[str, Any]()
        self._namespace = f"fedge-{cast.run}-{secrets.token_hex(4)}"
        self._gauges = RepeatedGauges(FLEET_METRICS, ("run",))
        self._energy = Metric("fedge_fleet_energy_joules", "All boards in their rounds", tag_keys=("run",))
        self._spent_j = 0.0
        for board in cast.devices:
            self._get_actor(cast.actor_name(board))

    def show(self, boards: Sequence[BoardFigures], fleet: FleetFigures | None) -> None:
        """Send figures to the actors without waiting; each board's round is a Ray task with the board's name."""
        from ray.exceptions import PendingCallsLimitExceeded

        for name, task, figures in _group_by_task(self._cast, boards):
            with contextlib.suppress(PendingCallsLimitExceeded):
                rows = [dataclasses.asdict(shown) for shown in figures]
                self._last[name] = self._get_actor(name).show.options(name=task).remote(rows)
        if fleet is not None:
            self._show_fleet(fleet)

    def close(self) -> None:
        """Let the actors process their last update, then end them."""
        import ray

        if self._last:
            ray.wait(list(self._last.values()), num_returns=len(self._last), timeout=CLOSE_TIMEOUT_S)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()

    def _get_actor(self, name: str) -> Any:
        if name not in self._actors:
            options = {"num_cpus": 0, "max_restarts": 3, "max_pending_calls": MAX_PENDING_CALLS}
            actor_class = _build_actor_class().options(name=name, namespace=self._namespace, **options)
            is_summed = len(self._cast.devices) > MAX_SERIES
            self._actors[name] = actor_class.remote(name, self._cast.run, is_summed)
        return self._actors[name]

    def _show_fleet(self, fleet: FleetFigures) -> None:
        tags = {"run": self._cast.run}
        for field in FLEET_METRICS:
            if (value := getattr(fleet, field)) is not None:
                self._gauges.set(field, value, tags, "")
        if fleet.energy_j > self._spent_j:
            self._energy.inc(fleet.energy_j - self._spent_j, tags)
            self._spent_j = fleet.energy_j


def _group_by_task(cast: ActorLayout, boards: Sequence[BoardFigures]) -> list[tuple[str, str, list[BoardFigures]]]:
    """Group figures into Ray tasks: actor name, task name, figures. Live figures of one actor share a task."""
    tasks = [(cast.actor_name(shown.board), shown.board, [shown]) for shown in boards if not shown.live]
    news: dict[tuple[str, str], list[BoardFigures]] = {}
    for shown in boards:
        if shown.live:
            task = "progress" if cast.by_kind else f"{shown.board} progress"
            news.setdefault((cast.actor_name(shown.board), task), []).append(shown)
    return tasks + [(actor, task, figures) for (actor, task), figures in news.items()]


def _build_actor_class() -> Any:
    """Return the actor class, pickled by value, because the cluster's machines do not have fedge."""
    import ray
    from ray import cloudpickle

    from server.exporters import ray_actor

    cloudpickle.register_pickle_by_value(ray_actor)
    return ray.remote(ray_actor.FedgeBoards)


def encode_line(boards: Sequence[BoardFigures], fleet: FleetFigures | None) -> str:
    """Encode figures as one line of the program's input."""
    figures = {"boards": [dataclasses.asdict(shown) for shown in boards]}
    return json.dumps(figures | ({"fleet": dataclasses.asdict(fleet)} if fleet else {})) + "\n"


def run_from_input(lines: TextIO) -> None:
    """Connect to the cluster named in the first line, then show line after line until the end of the input."""
    import ray

    first = json.loads(lines.readline())
    ray.init(address=first["address"], log_to_driver=False, logging_level=logging.WARNING)
    actors = BoardActors(ActorLayout(**first["cast"]))
    for line in lines:
        figures = json.loads(line)
        fleet = FleetFigures(**figures["fleet"]) if "fleet" in figures else None
        actors.show([BoardFigures(**shown) for shown in figures["boards"]], fleet)
    actors.close()
    ray.shutdown()


if __name__ == "__main__":
    run_from_input(sys.stdin)
