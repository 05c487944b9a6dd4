"""What can be wrong with the server: one small rule for each thing, all of them in ``RULES`` at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.fleet.status import services
from experiments.fleet.status.clocks import duration
from experiments.fleet.status.facts import Facts, error, mapping, number
from experiments.fleet.status.nodes import Nodes, unregister
from experiments.fleet.status.records import Finding, Fleet, note, wrong
from experiments.fleet.status.rules import full

CERTIFICATE_DAYS = 30
"""So long before its end a certificate is reported; chosen by us."""
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class ServerCase:
    """A server that answered, with what it is judged by."""

    name: str
    facts: Facts
    fleet: Fleet
    nodes: Nodes | None

    def part(self, name: str) -> Facts:
        return mapping(self.facts.get(name))


def services_up(case: ServerCase) -> Iterator[Finding]:
    """The SuperLink or what stands before it is down."""
    yield from services.of_server(case.part("services"), case.name)


def superlink_tells(case: ServerCase) -> Iterator[Finding]:
    """A SuperLink that runs and does not say which nodes it knows."""
    nodes, superlink = case.part("nodes"), mapping(case.part("services").get("fedge-superlink"))
    if error(nodes) is not None and superlink.get("state") == "active":
        yield wrong(
            f"the SuperLink does not say which nodes it knows: {nodes.get('text')}",
            "on the server: journalctl -u fedge-superlink",
        )


def nodes_without_names(case: ServerCase) -> Iterator[Finding]:
    """Only the ids of nodes are known, so that no board is told by them."""
    if case.nodes is None or not case.nodes.known or case.nodes.named:
        return
    count = Counter(node.status for node in case.nodes.known)
    states = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
    yield note(f"the SuperLink tells neither names nor keys of its nodes ({states})")


def strangers(case: ServerCase) -> Iterator[Finding]:
    """A registered node that no board of the inventory has."""
    for node in (case.nodes.known if case.nodes is not None else None) or ():
        if node.name is not None and node.name not in case.fleet.boards:
            what = f"node {node.node_id}, registered as {node.name}, is not in the inventory"
            yield note(what, f"add it to the inventory, or {unregister(node.node_id)}")


def disk(case: ServerCase) -> Iterator[Finding]:
    """A disk that the SuperLink or a run writes to is nearly full."""
    yield from full(case.part("disk_free_mb"), "on the server: sudo du -xhd1 /var | sort -h")


def certificates(case: ServerCase) -> Iterator[Finding]:
    """A certificate has ended, or will soon."""
    now_s = number(case.facts.get("at_s"))
    for name, value in case.part("certificates").items():
        ends_s = number(value)
        if ends_s is None or now_s is None or ends_s - now_s >= CERTIFICATE_DAYS * DAY_S:
            continue
        renew = "fedge fleet keys --out KEYS --renew, then fedge fleet provision --limit server"
        cure = renew if name == "server.crt" else "a new CA in a new folder: fedge fleet keys --out NEW (docs/fleet.md)"
        left_s = ends_s - now_s
        when = f"ended {duration(-left_s)} ago" if left_s < 0 else f"ends in {left_s / DAY_S:.0f} days"
        yield wrong(f"{name} {when}", cure)


RULES: Sequence[Callable[[ServerCase], Iterator[Finding]]] = (
    services_up,
    superlink_tells,
    nodes_without_names,
    strangers,
    disk,
    certificates,
)
"""In the order in which their findings are shown."""
