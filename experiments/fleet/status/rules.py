"""What can be wrong with a board: one small rule for each thing, all of them in ``RULES`` at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.fleet.status import services
from experiments.fleet.status.case import (
    AHEAD_S,
    BEHIND_S,
    CERTIFICATE_DAYS,
    EXTRAS,
    HOT_C,
    LEAST_FREE_MB,
    SERVICES,
    SILENT_S,
    SUPERNODE,
    TELEMETRY,
    Case,
)
from experiments.fleet.status.clocks import duration
from experiments.fleet.status.facts import Facts, error, number, text
from experiments.fleet.status.nodes import unregister
from experiments.fleet.status.records import Finding, note, wrong
from experiments.fleet.status.refusals import refusal

Rule = Callable[[Case], Iterator[Finding]]
PROGRAMS = (("powerd", "power daemon", "fedge-powerd"), ("worker", "worker", "fedge-worker"))
"""What the client on a board talks to: its part of the facts, its name, its service."""


def another_name(case: Case) -> Iterator[Finding]:
    """It calls itself otherwise than the inventory does."""
    called = text(case.facts.get("board"))
    if called is not None and called != case.name:
        yield wrong(f"it calls itself {called}, the inventory calls it {case.name}", case.cure("provision"))


def twins(case: Case) -> Iterator[Finding]:
    """Another board has its name or its key."""
    for other in case.common.twins.get(case.name, ()):
        what = f"has the name or the key of {other} too: one was copied from the other, or both names lead to one board"
        again = case.cure("provision", "server")
        yield wrong(what, f"give each an address of its own; on a copy: sudo rm /etc/fedge/keys/node*, then {again}")


def services_up(case: Case) -> Iterator[Finding]:
    """A service is not there, stopped, or does not stay up; said once where it is so of all."""
    states = {name: str(case.service(name).get("state")) for name in (*SERVICES, *EXTRAS) if case.service(name)}
    if states and set(states.values()) == {"absent"}:
        yield wrong("none of fedge's services is installed", case.cure("provision"))
        return
    if states and set(states.values()) == {"inactive"}:
        yield wrong("its services are stopped", case.cure("up"))
        return
    refused = refusal(case) is not None
    for name in states:
        # Why a SuperNode is refused is said by another rule.
        if name != SUPERNODE or not refused:
            yield from services.of_board(name, case.service(name), case.name)


def client_readable(case: Case) -> Iterator[Finding]:
    """The client's own files cannot be read."""
    client = case.part("client")
    if error(client):
        yield wrong(f"the client on it cannot be read: {client.get('text')}", case.cure("provision"))


def protocols(case: Case) -> Iterator[Finding]:
    """Half upgraded: two that must speak one protocol do not; or it is another than this control node's."""
    own = case.common.own
    for (part, who, _), mine in zip(PROGRAMS, (own.powerd_protocol, own.worker_protocol), strict=True):
        theirs, clients = number(case.part(part).get("protocol")), number(case.part("client").get(f"{part}_protocol"))
        heard = clients if theirs is None else theirs
        if theirs is not None and clients is not None and theirs != clients:
            what = f"half upgraded: {who} speaks protocol {theirs:g}, the client {clients:g}"
            yield wrong(what, case.cure("upgrade"))
        elif heard is not None and heard != mine:
            yield wrong(f"{who} speaks protocol {heard:g}, this control node {mine}", case.cure("upgrade"))


def flwr_version(case: Case) -> Iterator[Finding]:
    """Its Flower and the SuperLink's (else this control node's) do not speak to each other."""
    flwr = text(case.part("client").get("flwr"))
    for who, version in (("the SuperLink", case.common.server_flwr), ("this control node", case.common.own.flwr)):
        if flwr is not None and version is not None and _minor(flwr) != _minor(version):
            yield wrong(f"has flwr {flwr}, {who} {version}: they do not speak to each other", case.cure("upgrade"))
            return


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def fedge_version(case: Case) -> Iterator[Finding]:
    """Its fedge is another than this control node's."""
    fedge, own = text(case.facts.get("fedge")), case.common.own.fedge
    if fedge is not None and fedge != own:
        yield note(f"has fedge {fedge}, this control node {own}", case.cure("upgrade"))


def sockets(case: Case) -> Iterator[Finding]:
    """The user that trains may not ask the power daemon or the worker, or gets no answer."""
    for part, who, unit in PROGRAMS:
        kind, said = error(case.part(part)), case.part(part).get("text")
        if kind == "denied":
            # Its start makes the socket anew, with the right group.
            yield wrong(f"fedge-app may not ask the {who}: {said}", f"{case.cure('down')}, then {case.cure('up')}")
        elif kind and case.service(unit).get("state") in ("active", None):
            cure = f"on the board: journalctl -u {unit}; then {case.cure('up')}"
            yield wrong(f"the {who} does not answer: {said}", cure)


def supernode_refused(case: Case) -> Iterator[Finding]:
    """Its SuperNode does not get in."""
    found = refusal(case)
    if found is not None:
        yield found


def node_online(case: Case) -> Iterator[Finding]:
    """The SuperLink does not know its key, knows it by another name, or has not heard of it."""
    nodes, refused = case.common.nodes, refusal(case)
    if nodes is None or not nodes.named:
        return
    register = case.cure("provision", "server")
    if case.node is None:
        if refused is None or "not registered" not in refused.what:
            other = f"; another key is registered as {case.name}" if nodes.called(case.name) else ""
            yield wrong(f"its key is not registered at the SuperLink{other}", register)
    elif case.node.name is not None and case.node.name != case.name:
        cure = f"{unregister(case.node.node_id)}; then {register}"
        yield wrong(f"its key is registered as {case.node.name}", cure)
    elif not case.online and refused is None:
        cure = f"on the board: journalctl -u {SUPERNODE}; then {case.cure('up')}"
        yield wrong(f"its node is {case.node.status}, not online", cure)


def earlier_key(case: Case) -> Iterator[Finding]:
    """A node has its name and a key of before."""
    nodes, refused = case.common.nodes, refusal(case)
    if nodes is None or (case.node is None and refused is not None and "not registered" in refused.what):
        return
    for node in nodes.called(case.name):
        if case.key is not None and node.key is not None and node.key != case.key:
            say = note if case.online else wrong
            yield say(f"node {node.node_id} has its name and another key, of before", unregister(node.node_id))


def clock(case: Case) -> Iterator[Finding]:
    """Its clock is off beyond doubt."""
    found = case.clock
    if found is None or (found.least_s <= AHEAD_S and found.most_s >= -BEHIND_S):
        return
    side = "ahead of" if found.middle_s > 0 else "behind"
    off, give = duration(abs(found.middle_s)), duration(found.give_s)
    what = (
        f"its clock is {off} {side} the server's (give or take {give}); the SuperLink takes 5 s ahead and 5 min behind"
    )
    reached = "jetson_base_time_servers in the inventory names a server that it reaches"
    yield wrong(what, f"on the board: sudo chronyc makestep; {reached}")


def disk(case: Case) -> Iterator[Finding]:
    """A disk that fedge writes to is nearly full."""
    yield from full(case.part("disk_free_mb"), f"on the board: sudo du -xhd1 /var /srv | sort -h ({case.name})")


def full(free_mb: Facts, cure: str) -> Iterator[Finding]:
    """The folders in which too little is free."""
    for folder, value in free_mb.items():
        free = number(value)
        if free is not None and free < LEAST_FREE_MB:
            yield wrong(f"only {free:.0f} MB free at {folder}; {LEAST_FREE_MB} are needed", cure)


def telemetry(case: Case) -> Iterator[Finding]:
    """It is to tell of itself, and the server has not heard of it for a while."""
    if case.service(TELEMETRY).get("state") != "active" or case.common.ages_s is None:
        return
    age_s, cure = case.heard_s, f"on the board: journalctl -u {TELEMETRY}"
    if age_s is None:
        yield note("telemetry: no sample of it has come yet", cure)
    elif age_s > SILENT_S:
        yield note(f"telemetry: last sample {duration(age_s)} ago", cure)


def certificate(case: Case) -> Iterator[Finding]:
    """The certificate by which it tells of itself has ended, or will soon."""
    left_s = case.certificate_left_s
    if left_s is None or left_s >= CERTIFICATE_DAYS * 86400:
        return
    when = f"ended {duration(-left_s)} ago" if left_s < 0 else f"ends in {left_s / 86400:.0f} days"
    yield wrong(f"the certificate of its telemetry {when}", case.cure("provision"))


def held(case: Case) -> Iterator[Finding]:
    """Somebody holds the board's mode."""
    holder, left_s = text(case.part("powerd").get("holder")), number(case.part("powerd").get("holder_left_s"))
    if holder is not None:
        left = f" for {left_s:.0f} s more" if left_s is not None else ""
        yield note(f"the power daemon holds its mode for {holder}{left}", "wait, or stop what holds it")


def no_changes(case: Case) -> Iterator[Finding]:
    """The power daemon has stopped setting modes."""
    stopped = text(case.part("powerd").get("stopped"))
    if stopped is not None:
        yield wrong(f"the power daemon refuses changes: {stopped}", "on the board: journalctl -u fedge-powerd")


def hot(case: Case) -> Iterator[Finding]:
    """Heat limits the mode soon."""
    hot_c = number(case.part("powerd").get("temperature_c"))
    if hot_c is not None and hot_c >= HOT_C:
        yield note(f"{hot_c:.0f} C hot", "look at its fan and its surroundings; the mode may be limited by heat")


RULES: Sequence[Rule] = (
    another_name,
    twins,
    services_up,
    client_readable,
    protocols,
    flwr_version,
    fedge_version,
    sockets,
    supernode_refused,
    node_online,
    earlier_key,
    clock,
    disk,
    held,
    no_changes,
    hot,
    telemetry,
    certificate,
)
"""In the order in which their findings are shown."""
