"""A fleet's boards as named actors of a Ray cluster; as a program of its own it takes what to show from its input.

A program of its own, because Ray ends a process whose cluster is lost for a minute: no run may end for that reason.
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
"""Boards that have series of their own; the figures of more are added up by kind. Chosen by us."""
MAX_PENDING_CALLS = 10_000
"""Calls that an actor may be behind; beyond that it is told nothing until it has caught up. Chosen by us."""
FLEET_METRICS: dict[str, tuple[str, str]] = {
    "accuracy": ("fedge_accuracy_ratio", "The global model's accuracy"),
    "round": ("fedge_round", "The last round that is over"),
    "round_s": ("fedge_fleet_round_seconds", "The last round, on the fleet's clock"),
}
"""Field -> name and description of the metric."""
CLOSE_TIMEOUT_S = 3.0
"""How long the actors have to take what was told last, before they end. Chosen by us."""


@dataclass(frozen=True, slots=True)
class BoardFigures:
    """What is shown of one board; None and an empty mode mean that there is nothing new to say."""

    board: str
    device: str
    energy_j: float = 0.0
    """The board's total over the run so far."""
    power_w: float | None = None
    round_s: float | None = None
    progress: float | None = None
    """From 0 to 1."""
    temperature_c: float | None = None
    mode: str = ""
    live: bool = False
    """Told between two replies."""


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """What is shown of the whole fleet after a round."""

    round: int
    round_s: float
    energy_j: float
    """The total over the run so far."""
    accuracy: float


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """Who is to be shown: the run's name, every board's kind, every kind's title, and how many get their own actor."""

    run: str
    devices: Mapping[str, str]
    titles: Mapping[str, str]
    own_actors: int

    @property
    def by_kind(self) -> bool:
        """Whether there are too many boards for an actor each."""
        return len(self.devices) > self.own_actors

    def actor_name(self, board: str) -> str:
        """The name of the actor that shows ``board``."""
        device = self.devices[board]
        title = self.titles.get(device, device)
        if not self.by_kind:
            return f"{board} ({title})"
        count = Counter(self.devices.values())[device]
        return f"{title} ({count} {'board' if count == 1 else 'boards'})"


class BoardActors:
    """The actors of one run, in a namespace of their own on the cluster that this process is attached to."""

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
        """Tell the actors; returns at once. A board's figures of a round are a task of the board's name."""
        from ray.exceptions import PendingCallsLimitExceeded

        for name, task, told in _group_by_task(self._cast, boards):
            with contextlib.suppress(PendingCallsLimitExceeded):
                rows = [dataclasses.asdict(shown) for shown in told]
                self._last[name] = self._get_actor(name).show.options(name=task).remote(rows)
        if fleet is not None:
            self._show_fleet(fleet)

    def close(self) -> None:
        """Let the actors take what was told last, then end them."""
        import ray

        if self._last:
            ray.wait(list(self._last.values()), num_returns=len(self._last), timeout=CLOSE_TIMEOUT_S)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()

    def _get_actor(self, name: str) -> Any:
        if name not in self._actors:
            self._actors[name] = (
                _build_actor_class()
                .options(
                    name=name,
                    namespace=self._namespace,
                    num_cpus=0,
                    max_restarts=3,
                    max_pending_calls=MAX_PENDING_CALLS,
                )
                .remote(name, self._cast.run, len(self._cast.devices) > MAX_SERIES)
            )
        return self._actors[name]

    def _show_fleet(self, fleet: FleetFigures) -> None:
        tags = {"run": self._cast.run}
        for field in FLEET_METRICS:
            self._gauges.set(field, getattr(fleet, field), tags, "")
        if fleet.energy_j > self._spent_j:
            self._energy.inc(fleet.energy_j - self._spent_j, tags)
            self._spent_j = fleet.energy_j


def _group_by_task(cast: ActorLayout, boards: Sequence[BoardFigures]) -> list[tuple[str, str, list[BoardFigures]]]:
    """Actor, name of the task and what it tells; many boards' news between replies are one task of a kind."""
    tasks = [(cast.actor_name(shown.board), shown.board, [shown]) for shown in boards if not shown.live]
    news: dict[tuple[str, str], list[BoardFigures]] = {}
    for shown in boards:
        if shown.live:
            task = "progress" if cast.by_kind else f"{shown.board} progress"
            news.setdefault((cast.actor_name(shown.board), task), []).append(shown)
    return tasks + [(actor, task, told) for (actor, task), told in news.items()]


def _build_actor_class() -> Any:
    """The actors' class, by value: a cluster's machines have no fedge."""
    import ray
    from ray import cloudpickle

    from server.exporters import ray_actor

    cloudpickle.register_pickle_by_value(ray_actor)
    return ray.remote(ray_actor.FedgeBoards)


def encode_line(boards: Sequence[BoardFigures], fleet: FleetFigures | None) -> str:
    """One line for the program's input."""
    told = {"boards": [dataclasses.asdict(shown) for shown in boards]}
    return json.dumps(told | ({"fleet": dataclasses.asdict(fleet)} if fleet else {})) + "\n"


def run_from_input(lines: TextIO) -> None:
    """Attach to the cluster that the first line names, then show line after line until there are no more."""
    import ray

    first = json.loads(lines.readline())
    ray.init(address=first["address"], log_to_driver=False, logging_level=logging.WARNING)
    actors = BoardActors(ActorLayout(**first["cast"]))
    for line in lines:
        told = json.loads(line)
        fleet = FleetFigures(**told["fleet"]) if "fleet" in told else None
        actors.show([BoardFigures(**shown) for shown in told["boards"]], fleet)
    actors.close()
    ray.shutdown()


if __name__ == "__main__":
    run_from_input(sys.stdin)
