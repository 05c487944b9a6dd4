"""Inspects a fleet: runs the status playbook, and makes one record per host with the findings of every rule."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.fleet import board_rules, selected_fleet
from experiments.fleet.board_rules import OPTIONAL_SERVER_SERVICES, SERVER_SERVICES, find_full_folders
from experiments.fleet.playbook_progress import AnswerProgress
from experiments.fleet.playbook_runner import (
    PlaybookCall,
    PlaybookEvent,
    PlaybookOutcome,
    PlaybookState,
    execute_playbook,
)
from experiments.fleet.selected_fleet import FleetOptions, SelectedFleet
from experiments.fleet.server_connection import list_logins
from experiments.fleet.status_records import (
    ON_BOARD,
    ON_SERVER,
    OPTIONAL_SERVICES,
    SERVICES,
    BoardCase,
    BoardStatus,
    ControlNode,
    Facts,
    FleetHosts,
    FleetStatus,
    HostFinding,
    ServerStatus,
    SharedFacts,
    SuperlinkNodes,
    as_mapping,
    as_number,
    as_rows,
    as_text,
    error_kind,
    format_duration,
    least_free_mb,
    make_note,
    make_problem,
    measure_offset,
    parse_public_key,
    subtract_offset,
    unregister_command,
)
from fedge import __version__, powerd, worker
from fedge.errors import BadInput, RunFailed
from fedge.json_reader import read_json, to_json_value

if TYPE_CHECKING:
    from rich.console import Console


CERTIFICATE_DAYS = 30
"""Remaining validity, in days, below which a warning is due; the same month as ``key_folder.WARN_WITHIN``."""
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class ServerCase:
    """A server that replied, as the rules see it."""

    name: str
    facts: Facts
    fleet: FleetHosts
    nodes: SuperlinkNodes | None

    def part(self, name: str) -> Facts:
        return as_mapping(self.facts.get(name))


def check_services(case: ServerCase) -> Iterator[HostFinding]:
    """Find a SuperLink or proxy that is down."""
    yield from board_rules.check_server_services(case.part("services"), case.name)


def check_superlink_answer(case: ServerCase) -> Iterator[HostFinding]:
    """Find a SuperLink that runs but does not list its nodes."""
    nodes, superlink = case.part("nodes"), as_mapping(case.part("services").get("fedge-superlink"))
    if error_kind(nodes) is not None and superlink.get("state") == "active":
        yield make_problem(
            f"the SuperLink does not say which nodes it knows: {nodes.get('text')}",
            f"{ON_SERVER}: journalctl -u fedge-superlink",
        )


def check_node_names(case: ServerCase) -> Iterator[HostFinding]:
    """Find a SuperLink that reports only node ids, by which no board can be identified."""
    if case.nodes is None or not case.nodes.known or case.nodes.has_names:
        return
    count = Counter(node.status for node in case.nodes.known)
    states = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
    yield make_note(f"the SuperLink tells neither names nor keys of its nodes ({states})")


def find_unknown_nodes(case: ServerCase) -> Iterator[HostFinding]:
    """Find registered nodes that belong to no board of the inventory."""
    for node in (case.nodes.known if case.nodes is not None else None) or ():
        if node.name is not None and node.name not in case.fleet.boards:
            what = f"node {node.node_id}, registered as {node.name}, is not in the inventory"
            yield make_note(what, f"add it to the inventory, or {unregister_command(node.node_id)}")


def check_disk(case: ServerCase) -> Iterator[HostFinding]:
    """Find nearly full disks that the SuperLink or a run writes to."""
    yield from find_full_folders(case.part("disk_free_mb"), f"{ON_SERVER}: sudo du -xhd1 /var | sort -h")


def check_certificates(case: ServerCase) -> Iterator[HostFinding]:
    """Find certificates that have expired or are about to."""
    now_s = as_number(case.facts.get("at_s"))
    for name, value in case.part("certificates").items():
        ends_s = as_number(value)
        if ends_s is None or now_s is None or ends_s - now_s >= CERTIFICATE_DAYS * DAY_S:
            continue
        renew = "fedge fleet keys --folder KEYS --renew, then fedge fleet provision --limit server"
        new_ca = "a new CA in a new folder: fedge fleet keys --folder NEW (docs/how-to/fleet.md)"
        cure = renew if name == "server.crt" else new_ca
        left_s = ends_s - now_s
        when = f"ended {format_duration(-left_s)} ago" if left_s < 0 else f"ends in {left_s / DAY_S:.0f} days"
        yield make_problem(f"{name} {when}", cure)


SERVER_RULES: Sequence[Callable[[ServerCase], Iterator[HostFinding]]] = (
    check_services,
    check_superlink_answer,
    check_node_names,
    find_unknown_nodes,
    check_disk,
    check_certificates,
)
"""Rules in the order in which their findings are shown."""


NO_FACTS = "it answered with something else than facts"


def assess_fleet(fleet: FleetHosts, told: Mapping[str, Any], own: ControlNode, lost: Mapping[str, str]) -> FleetStatus:
    """Assess the queried boards and, if it was queried, the server.

    Args:
        fleet: Names in the inventory and which boards were queried.
        told: Per host the collected record with ``asked_at_s``, ``answered_at_s`` and ``facts``; any is accepted.
        own: Versions and protocols of the control node.
        lost: Reason for each host that could not be reached.
    """
    server_record = as_mapping(told.get(fleet.server)) if fleet.server is not None else {}
    server = as_mapping(server_record.get("facts"))
    nodes = SuperlinkNodes.from_server(server) if server.get("kind") == "server" else None
    common = SharedFacts(
        own,
        nodes=nodes,
        server_clock=measure_offset(server_record),
        server_flwr=as_text(server.get("flwr")),
        twins=find_twins(told, fleet.asked),
        ages_s=_read_ages_s(server),
    )
    boards = tuple(
        replace(
            _assess_board(name, as_mapping(told.get(name)), common, fleet=fleet, lost=lost.get(name)),
            login=fleet.login(name),
        )
        for name in fleet.asked
    )
    if fleet.server is None or (fleet.server not in told and fleet.server not in lost):
        return FleetStatus(boards)
    found = _assess_server(fleet.server, record=server_record, fleet=fleet, nodes=nodes, lost=lost.get(fleet.server))
    return FleetStatus(boards, replace(found, login=fleet.login(fleet.server)))


def _read_ages_s(server: Facts) -> Facts | None:
    """Return the seconds since each board's last telemetry, or None if the server does not report it."""
    ages_s = server.get("ages_s")
    return as_mapping(ages_s) if isinstance(ages_s, Mapping) and error_kind(ages_s) is None else None


def find_twins(told: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for each board the other boards with the same name or key."""
    facts = {name: as_mapping(as_mapping(told.get(name)).get("facts")) for name in names}
    marks = {
        name: [
            mark
            for mark in (as_text(has.get("board")), parse_public_key(as_text(has.get("public_key"))))
            if mark is not None
        ]
        for name, has in facts.items()
    }
    shared = Counter(mark for of_one in marks.values() for mark in of_one)
    suspects = [name for name, of_one in marks.items() if any(shared[mark] > 1 for mark in of_one)]
    return {
        name: tuple(other for other in suspects if other != name and set(marks[other]) & set(marks[name]))
        for name in suspects
    }


def _make_unreachable(login: str, lost: str | None) -> HostFinding:
    why = f" ({lost})" if lost else ""
    cure = f"log in by hand: ssh {login}; is it on, is its address in the inventory right, its host key in known_hosts?"
    return make_problem(f"cannot be reached by ssh{why}", cure)


def _assess_board(name: str, record: Facts, common: SharedFacts, *, fleet: FleetHosts, lost: str | None) -> BoardStatus:
    facts = as_mapping(record.get("facts"))
    kind = facts.get("kind")
    if not record:
        return BoardStatus(name, "unreachable", (_make_unreachable(fleet.login(name), lost),))
    if kind == "bare":
        return BoardStatus(
            name, "bare", (make_problem("bare: fedge is not on it", f"fedge fleet provision --limit {name}"),)
        )
    if kind != "board":
        cure = f"{ON_BOARD}: sudo /usr/lib/fedge-python/bin/python3 -V; then fedge fleet provision --limit {name}"
        return BoardStatus(
            name, "failed", (make_problem(f"could not be asked: {as_text(facts.get('text')) or NO_FACTS}", cure),)
        )
    nodes, key = common.nodes, parse_public_key(as_text(facts.get("public_key")))
    node = nodes.find_board_node(name, key) if nodes is not None else None
    case = BoardCase(
        name, facts=facts, common=common, node=node, clock=subtract_offset(measure_offset(record), common.server_clock)
    )
    return _build_board_status(case, tuple(finding for rule in board_rules.BOARD_RULES for finding in rule(case)))


def _build_board_status(case: BoardCase, findings: tuple[HostFinding, ...]) -> BoardStatus:
    powerd, worker, claim = case.part("powerd"), case.part("worker"), case.part("claim")
    mode = {str(knob): as_number(value) for knob, value in as_mapping(powerd.get("mode")).items()}
    return BoardStatus(
        name=case.name,
        state="up",
        findings=findings,
        model=as_text(case.facts.get("model")),
        versions=_list_versions(case),
        node_id=case.node.node_id if case.node else None,
        node=case.node.status if case.node else None,
        services={name: str(case.service(name).get("state", "unknown")) for name in _list_services(case)},
        powerd=error_kind(powerd) or ("answers" if powerd else None),
        worker=error_kind(worker) or as_text(worker.get("state")) or ("answers" if worker else None),
        mode={knob: value for knob, value in mode.items() if value is not None},
        preset=as_text(powerd.get("preset")),
        holder=as_text(powerd.get("holder")),
        temperature_c=as_number(powerd.get("temperature_c")),
        free_mb=least_free_mb(case.facts.get("disk_free_mb")),
        offset_s=case.clock.middle_s if case.clock else None,
        give_s=case.clock.uncertainty_s if case.clock else None,
        run=as_text(claim.get("run")),
        run_left_s=as_number(claim.get("left_s")),
        heard_s=case.heard_s,
        certificate_left_s=case.certificate_left_s,
    )


def _list_services(case: BoardCase) -> tuple[str, ...]:
    """Return the required services and the optional ones that are installed."""
    return (*SERVICES, *(name for name in OPTIONAL_SERVICES if case.service(name)))


def _list_versions(case: BoardCase) -> dict[str, str]:
    """Return the known versions of the programs on a board, by program."""
    worker = case.part("worker")
    reported = {
        "fedge": case.facts.get("fedge"),
        "python": case.facts.get("python"),
        "flwr": case.part("client").get("flwr"),
        "torch": worker.get("torch"),
        "powerd": case.part("powerd").get("version"),
        "worker": worker.get("version"),
    }
    return {name: version for name, version in reported.items() if isinstance(version, str)}


def _assess_server(
    name: str, record: Facts, fleet: FleetHosts, nodes: SuperlinkNodes | None, lost: str | None
) -> ServerStatus:
    facts = as_mapping(record.get("facts"))
    if not record:
        return ServerStatus(name, "unreachable", (_make_unreachable(fleet.login(name), lost),))
    if facts.get("kind") != "server":
        bare = facts.get("kind") == "bare"
        reason = "it has no Python" if bare else as_text(facts.get("text")) or NO_FACTS
        problem = make_problem(f"could not be asked: {reason}", f"fedge fleet provision --limit {name}")
        return ServerStatus(name, "bare" if bare else "failed", (problem,))
    case = ServerCase(name, facts, fleet, nodes)
    services = case.part("services")
    return ServerStatus(
        name=name,
        state="up",
        findings=tuple(finding for rule in SERVER_RULES for finding in rule(case)),
        services={
            unit: str(as_mapping(services.get(unit)).get("state", "unknown"))
            for unit in (
                *SERVER_SERVICES,
                *(unit for unit in OPTIONAL_SERVER_SERVICES if as_mapping(services.get(unit))),
            )
        },
        runs=tuple(str(run.get("name") or run.get("run_id")) for run in as_rows(facts.get("runs"))),
        free_mb=least_free_mb(facts.get("disk_free_mb")),
    )


STATUS_PLAYBOOK = "status.yml"
PlaybookRunner = Callable[[PlaybookCall, Path, Callable[[PlaybookState, PlaybookEvent], None]], PlaybookOutcome]


@dataclass(frozen=True, slots=True)
class FleetAnswers:
    """Facts collected from the hosts.

    Attributes:
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
    hosts = FleetHosts(fleet.inventory.board_names, fleet.boards, server, list_logins(fleet.inventory))
    return FleetAnswers(hosts, answers, reasons)


def _build_status_call(fleet: SelectedFleet, folder: Path) -> PlaybookCall:
    call = fleet.build_call(STATUS_PLAYBOOK)
    # The server is always queried, because its view of a board is part of the board's status. Hosts by name: Ansible
    # would not read a pattern with colons, or exclude the server where the pattern does.
    limit = ",".join(dict.fromkeys((*fleet.boards, fleet.inventory.server.name))) if call.limit else None
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
    hosts = [{**asdict(board), "healthy": board.is_healthy} for board in status.boards]
    server = None if status.server is None else {**asdict(status.server), "healthy": status.server.is_healthy}
    data: dict[str, Any] = to_json_value({"healthy": status.is_healthy, "server": server, "boards": hosts})
    return data
