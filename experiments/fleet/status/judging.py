"""From what the hosts told to the status of the fleet: each host's record, with what every rule finds of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.fleet.status import rules, server_rules
from experiments.fleet.status.case import EXTRAS, SERVICES, Case, Common
from experiments.fleet.status.clocks import against, clock_of
from experiments.fleet.status.facts import Facts, error, least_mb, mapping, number, rows, text
from experiments.fleet.status.nodes import Nodes, key_of
from experiments.fleet.status.records import Board, Finding, Fleet, Own, Server, Status, wrong
from experiments.fleet.status.server_rules import ServerCase
from experiments.fleet.status.services import SERVER_EXTRAS, SERVER_SERVICES

NO_FACTS = "it answered with something else than facts"


def judged(fleet: Fleet, told: Mapping[str, Any], own: Own, lost: Mapping[str, str]) -> Status:
    """The status of the boards asked.

    ``told`` has per host what was written of it ({"asked_at_s", "answered_at_s", "facts"}); ``lost`` says why a host
    without it could not be reached. Nothing in ``told`` makes this raise.
    """
    server_told = mapping(told.get(fleet.server)) if fleet.server is not None else {}
    server = mapping(server_told.get("facts"))
    nodes = Nodes.of(server) if server.get("kind") == "server" else None
    common = Common(
        own, nodes, clock_of(server_told), text(server.get("flwr")), twins(told, fleet.asked), _ages_s(server)
    )
    boards = tuple(_board(name, mapping(told.get(name)), common, lost.get(name)) for name in fleet.asked)
    if fleet.server is None or (fleet.server not in told and fleet.server not in lost):
        return Status(boards)
    return Status(boards, _server(fleet.server, server_told, fleet, nodes, lost.get(fleet.server)))


def _ages_s(server: Facts) -> Facts | None:
    """How long ago each board told of itself, where the server could say."""
    ages_s = server.get("ages_s")
    return mapping(ages_s) if isinstance(ages_s, Mapping) and error(ages_s) is None else None


def twins(told: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each board the others that have its name or its key."""
    facts = {name: mapping(mapping(told.get(name)).get("facts")) for name in names}
    marks = {
        name: [mark for mark in (text(has.get("board")), key_of(text(has.get("public_key")))) if mark is not None]
        for name, has in facts.items()
    }
    shared = Counter(mark for of_one in marks.values() for mark in of_one)
    suspects = [name for name, of_one in marks.items() if any(shared[mark] > 1 for mark in of_one)]
    return {
        name: tuple(other for other in suspects if other != name and set(marks[other]) & set(marks[name]))
        for name in suspects
    }


def _unreachable(name: str, lost: str | None) -> Finding:
    why = f" ({lost})" if lost else ""
    cure = f"log in by hand: ssh {name}; is it on, is its address in the inventory right, its host key in known_hosts?"
    return wrong(f"cannot be reached by ssh{why}", cure)


def _board(name: str, told: Facts, common: Common, lost: str | None) -> Board:
    facts = mapping(told.get("facts"))
    kind = facts.get("kind")
    if not told:
        return Board(name, "unreachable", (_unreachable(name, lost),))
    if kind == "bare":
        return Board(name, "bare", (wrong("bare: fedge is not on it", f"fedge fleet provision --limit {name}"),))
    if kind != "board":
        cure = f"ssh {name}, then: sudo /usr/lib/fedge-python/bin/python3 -V; fedge fleet provision --limit {name}"
        return Board(name, "failed", (wrong(f"could not be asked: {text(facts.get('text')) or NO_FACTS}", cure),))
    nodes, key = common.nodes, key_of(text(facts.get("public_key")))
    node = nodes.of_board(name, key) if nodes is not None else None
    case = Case(name, facts, common, node, against(clock_of(told), common.server_clock))
    return _record(case, tuple(finding for rule in rules.RULES for finding in rule(case)))


def _record(case: Case, findings: tuple[Finding, ...]) -> Board:
    powerd, worker, claim = case.part("powerd"), case.part("worker"), case.part("claim")
    mode = {str(knob): number(value) for knob, value in mapping(powerd.get("mode")).items()}
    return Board(
        name=case.name,
        state="up",
        findings=findings,
        model=text(case.facts.get("model")),
        versions=_versions(case),
        node_id=case.node.node_id if case.node else None,
        node=case.node.status if case.node else None,
        services={name: str(case.service(name).get("state", "unknown")) for name in _shown(case)},
        powerd=error(powerd) or ("answers" if powerd else None),
        worker=error(worker) or text(worker.get("state")) or ("answers" if worker else None),
        mode={knob: value for knob, value in mode.items() if value is not None},
        preset=text(powerd.get("preset")),
        holder=text(powerd.get("holder")),
        temperature_c=number(powerd.get("temperature_c")),
        free_mb=least_mb(case.facts.get("disk_free_mb")),
        offset_s=case.clock.middle_s if case.clock else None,
        give_s=case.clock.give_s if case.clock else None,
        run=text(claim.get("run")),
        run_left_s=number(claim.get("left_s")),
        heard_s=case.heard_s,
        certificate_left_s=case.certificate_left_s,
    )


def _shown(case: Case) -> tuple[str, ...]:
    """The services that it has to have, and those that it has beside them."""
    return (*SERVICES, *(name for name in EXTRAS if case.service(name)))


def _versions(case: Case) -> dict[str, str]:
    """What is known of the versions on a board."""
    worker = case.part("worker")
    told = {
        "fedge": case.facts.get("fedge"),
        "python": case.facts.get("python"),
        "flwr": case.part("client").get("flwr"),
        "torch": worker.get("torch"),
        "powerd": case.part("powerd").get("version"),
        "worker": worker.get("version"),
    }
    return {name: version for name, version in told.items() if isinstance(version, str)}


def _server(name: str, told: Facts, fleet: Fleet, nodes: Nodes | None, lost: str | None) -> Server:
    facts = mapping(told.get("facts"))
    if not told:
        return Server(name, "unreachable", (_unreachable(name, lost),))
    if facts.get("kind") != "server":
        bare = facts.get("kind") == "bare"
        said = "it has no Python" if bare else text(facts.get("text")) or NO_FACTS
        found = wrong(f"could not be asked: {said}", f"fedge fleet provision --limit {name}")
        return Server(name, "bare" if bare else "failed", (found,))
    case = ServerCase(name, facts, fleet, nodes)
    services = case.part("services")
    return Server(
        name=name,
        state="up",
        findings=tuple(finding for rule in server_rules.RULES for finding in rule(case)),
        services={
            unit: str(mapping(services.get(unit)).get("state", "unknown"))
            for unit in (*SERVER_SERVICES, *(unit for unit in SERVER_EXTRAS if mapping(services.get(unit))))
        },
        runs=tuple(str(run.get("name") or run.get("run_id")) for run in rows(facts.get("runs"))),
        free_mb=least_mb(facts.get("disk_free_mb")),
    )
