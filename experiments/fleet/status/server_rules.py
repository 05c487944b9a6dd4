"""Health rules for the server, one small function each, collected in ``SERVER_RULES``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.fleet.status import service_rules
from experiments.fleet.status.board_rules import find_full_folders
from experiments.fleet.status.host_facts import Facts, as_mapping, as_number, error_kind, format_duration
from experiments.fleet.status.status_records import FleetHosts, HostFinding, make_note, make_problem
from experiments.fleet.status.superlink_nodes import SuperlinkNodes, unregister_command

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
    yield from service_rules.check_server_services(case.part("services"), case.name)


def check_superlink_answer(case: ServerCase) -> Iterator[HostFinding]:
    """Find a SuperLink that runs but does not list its nodes."""
    nodes, superlink = case.part("nodes"), as_mapping(case.part("services").get("fedge-superlink"))
    if error_kind(nodes) is not None and superlink.get("state") == "active":
        yield make_problem(
            f"the SuperLink does not say which nodes it knows: {nodes.get('text')}",
            "on the server: journalctl -u fedge-superlink",
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
    yield from find_full_folders(case.part("disk_free_mb"), "on the server: sudo du -xhd1 /var | sort -h")


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
