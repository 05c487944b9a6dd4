"""Builds the fleet's status from the collected facts: one record per host with the findings of every rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.fleet.status import board_rules, server_rules
from experiments.fleet.status.board_case import OPTIONAL_SERVICES, SERVICES, BoardCase, SharedFacts
from experiments.fleet.status.host_facts import (
    Facts,
    as_mapping,
    as_number,
    as_rows,
    as_text,
    error_kind,
    least_free_mb,
    measure_offset,
    subtract_offset,
)
from experiments.fleet.status.server_rules import ServerCase
from experiments.fleet.status.service_rules import OPTIONAL_SERVER_SERVICES, SERVER_SERVICES
from experiments.fleet.status.status_records import (
    BoardStatus,
    ControlNode,
    FleetHosts,
    FleetStatus,
    HostFinding,
    ServerStatus,
    make_problem,
)
from experiments.fleet.status.superlink_nodes import SuperlinkNodes, parse_public_key

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
    boards = tuple(_assess_board(name, as_mapping(told.get(name)), common, lost.get(name)) for name in fleet.asked)
    if fleet.server is None or (fleet.server not in told and fleet.server not in lost):
        return FleetStatus(boards)
    return FleetStatus(
        boards,
        _assess_server(fleet.server, record=server_record, fleet=fleet, nodes=nodes, lost=lost.get(fleet.server)),
    )


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


def _make_unreachable(name: str, lost: str | None) -> HostFinding:
    why = f" ({lost})" if lost else ""
    cure = f"log in by hand: ssh {name}; is it on, is its address in the inventory right, its host key in known_hosts?"
    return make_problem(f"cannot be reached by ssh{why}", cure)


def _assess_board(name: str, record: Facts, common: SharedFacts, lost: str | None) -> BoardStatus:
    facts = as_mapping(record.get("facts"))
    kind = facts.get("kind")
    if not record:
        return BoardStatus(name, "unreachable", (_make_unreachable(name, lost),))
    if kind == "bare":
        return BoardStatus(
            name, "bare", (make_problem("bare: fedge is not on it", f"fedge fleet provision --limit {name}"),)
        )
    if kind != "board":
        cure = f"ssh {name}, then: sudo /usr/lib/fedge-python/bin/python3 -V; fedge fleet provision --limit {name}"
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
        return ServerStatus(name, "unreachable", (_make_unreachable(name, lost),))
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
        findings=tuple(finding for rule in server_rules.SERVER_RULES for finding in rule(case)),
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
