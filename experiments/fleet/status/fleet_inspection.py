"""Inspection of a fleet: runs the status playbook, reads the answer of every host, and assesses them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.fleet import inventory, selected_fleet
from experiments.fleet.playbook_events import PlaybookEvent, PlaybookState
from experiments.fleet.playbook_progress import AnswerProgress
from experiments.fleet.playbook_runner import PlaybookCall, PlaybookOutcome, execute_playbook
from experiments.fleet.selected_fleet import FleetOptions, SelectedFleet
from experiments.fleet.status.fleet_assessment import assess_fleet
from experiments.fleet.status.status_records import ControlNode, FleetHosts, FleetStatus
from fedge import __version__, powerd, worker
from fedge.errors import BadInput, RunFailed
from fedge.json_reader import read_json

if TYPE_CHECKING:
    from rich.console import Console

STATUS_PLAYBOOK = "status.yml"
PlaybookRunner = Callable[[PlaybookCall, Path, Callable[[PlaybookState, PlaybookEvent], None]], PlaybookOutcome]


@dataclass(frozen=True, slots=True)
class FleetAnswers:
    """Facts collected from the hosts.

    Attributes:
        answers: Collected record by host.
        unreachable: Reason by host without a record.
    """

    fleet: FleetHosts
    answers: Mapping[str, Any] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)


def inspect_fleet(options: FleetOptions, log: Path, console: Console) -> FleetStatus:
    """Query every host of a fleet and assess the answers; nothing is changed. ``log`` gets Ansible's output.

    Raises:
        BadInput: If the inventory is invalid.
        RunFailed: If no host could be queried.
    """
    answers = query_hosts(selected_fleet.read_fleet(options), log, console)
    return assess_fleet(answers.fleet, answers.answers, local_versions(), answers.unreachable)


def local_versions() -> ControlNode:
    """Return the versions and protocols of this control node."""
    return ControlNode(__version__, version("flwr"), powerd.PROTOCOL, worker.PROTOCOL)


def query_hosts(
    fleet: SelectedFleet, log: Path, console: Console, run: PlaybookRunner = execute_playbook
) -> FleetAnswers:
    """Run the status playbook and read the records it wrote; unreachable hosts do not make it fail."""
    server = fleet.inventory.server.name
    unreachable: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fedge-status-") as temporary:
        folder = Path(temporary)

        def note_failures(state: PlaybookState, _event: PlaybookEvent) -> None:
            unreachable.update(state.failures_by_host)

        def done() -> frozenset[str]:
            return frozenset((*unreachable, *(path.stem for path in folder.glob("*.json"))))

        with AnswerProgress(console, (server, *fleet.boards), done):
            outcome = run(_build_status_call(fleet, folder), log, note_failures)
        answers = dict(read_answers(folder))
    reasons = {name: event.text for name, event in outcome.state.failures_by_host.items()}
    if not answers and not reasons:
        words = outcome.words or f"Ansible ended with {outcome.code}"
        raise RunFailed(f"no host could be queried: {words}; Ansible's output is in {log}")
    return FleetAnswers(FleetHosts(fleet.inventory.board_names, fleet.boards, server), answers, reasons)


def _build_status_call(fleet: SelectedFleet, folder: Path) -> PlaybookCall:
    call = fleet.build_call(STATUS_PLAYBOOK)
    # The server is always queried, because its view of a board is part of the board's status.
    limit = f"{call.limit},{inventory.SERVER}" if call.limit else None
    return replace(call, limit=limit, variables={"status_to": str(folder)})


def read_answers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield host and content of each file that the playbook wrote."""
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.stem, read_json(path, "facts")
        except BadInput:
            yield path.stem, {"facts": {"kind": "failed", "text": "its answer is no JSON"}}


def fleet_status_to_dict(status: FleetStatus) -> dict[str, Any]:
    """Return a status for JSON, with values that every JSON reader accepts."""
    hosts = [{**asdict(board), "well": board.is_healthy} for board in status.boards]
    server = None if status.server is None else {**asdict(status.server), "well": status.server.is_healthy}
    data: dict[str, Any] = _to_json_value({"well": status.is_healthy, "server": server, "boards": hosts})
    return data


def _to_json_value(value: Any) -> Any:
    """Convert a value to valid JSON: lone surrogates, which a host may have sent, and infinities are replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_to_json_value(str(key)): _to_json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
