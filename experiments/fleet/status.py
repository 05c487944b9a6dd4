"""What the facts of a fleet's hosts mean: one record per board, and what is wrong with it, with its cure."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "note", "wrong"]
Facts = Mapping[str, Any]

SERVICES = ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-superexec")
SERVER_SERVICES = ("fedge-superlink", "nginx")
SUPERNODE = "fedge-supernode"

# Chosen by us. Flower itself takes a board that is up to 5 s ahead and 300 s behind.
AHEAD_S, BEHIND_S = 2.0, 60.0
HOT_C = 90.0
LEAST_FREE_MB = 500
RESTARTS = 3
START_LINES = 8
"""What a SuperNode says before its first word with the SuperLink."""
CERTIFICATE_DAYS = 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a host: how bad it is, in words, and the command or deed that mends it."""

    severity: Severity
    what: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """What the control node itself has: its versions, the protocols that it speaks."""

    fedge: str
    flwr: str
    powerd_protocol: int
    worker_protocol: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The names in the inventory; ``asked`` are those of ``boards`` that were asked this time."""

    boards: tuple[str, ...]
    asked: tuple[str, ...]
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """One board. What is not known is None; ``offset_s`` is its clock minus the server's, give or take ``give_s``."""

    name: str
    state: Literal["up", "bare", "failed", "unreachable"]
    findings: tuple[Finding, ...] = ()
    model: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    node_id: str | None = None
    node: str | None = None
    services: Mapping[str, str] = field(default_factory=dict)
    powerd: str | None = None
    worker: str | None = None
    mode: Mapping[str, float] = field(default_factory=dict)
    preset: str | None = None
    holder: str | None = None
    temperature_c: float | None = None
    free_mb: float | None = None
    offset_s: float | None = None
    give_s: float | None = None
    run: str | None = None
    run_left_s: float | None = None

    @property
    def well(self) -> bool:
        return all(finding.severity != "wrong" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Server:
    """The server; ``runs`` are those that have not ended."""

    name: str
    state: Literal["up", "bare", "failed", "unreachable"]
    findings: tuple[Finding, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    free_mb: float | None = None

    @property
    def well(self) -> bool:
        return all(finding.severity != "wrong" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Status:
    """The whole fleet; ``server`` is None where it was not asked."""

    boards: tuple[Board, ...]
    server: Server | None = None

    @property
    def well(self) -> bool:
        return all(board.well for board in self.boards) and (self.server is None or self.server.well)


def judged(fleet: Fleet, told: Mapping[str, Any], own: Own, lost: Mapping[str, str]) -> Status:
    """The status of the boards asked.

    ``told`` has per host what was written of it ({"asked_at_s", "answered_at_s", "facts"}); ``lost`` says why a host
    without it could not be reached. Nothing in ``told`` makes this raise.
    """
    server_told = _map(told.get(fleet.server)) if fleet.server is not None else {}
    server = _map(server_told.get("facts"))
    nodes = _Nodes.of(server) if server.get("kind") == "server" else None
    common = _Common(own, nodes, _clock(server_told), _text(server.get("flwr")), _twins(told, fleet.asked))
    boards = tuple(_board(name, told.get(name), common, lost.get(name)) for name in fleet.asked)
    if fleet.server is None or (fleet.server not in told and fleet.server not in lost):
        return Status(boards)
    return Status(boards, _server(fleet, server_told, nodes, lost.get(fleet.server)))


# Facts are whatever a host said: each of these takes anything.


def _map(value: object) -> Facts:
    return value if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[Facts]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _lines(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _error(value: object) -> str | None:
    """The kind of error that stands in place of a part."""
    found = _map(value)
    return str(found["error"]) if "error" in found else None


# What all boards are judged by


@dataclass(frozen=True, slots=True)
class _Clock:
    """How far a host's clock is ahead of the control node's: between ``least_s`` and ``most_s``."""

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def give_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def _clock(told: Facts) -> _Clock | None:
    """From the two times at which the host looked at its clock, between the two at which the control node did."""
    facts = _map(told.get("facts"))
    asked_s, answered_s, at_s = (
        _number(told.get("asked_at_s")),
        _number(told.get("answered_at_s")),
        _number(facts.get("at_s")),
    )
    if asked_s is None or answered_s is None or at_s is None:
        return None
    done_s = _number(facts.get("done_at_s"))
    return _Clock((at_s if done_s is None else done_s) - answered_s, at_s - asked_s)


@dataclass(frozen=True, slots=True)
class _Node:
    node_id: str
    name: str | None
    status: str
    key: bytes | None


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes that the SuperLink knows; None for ``known`` where it did not say."""

    known: tuple[_Node, ...] | None

    @classmethod
    def of(cls, server: Facts) -> _Nodes:
        if not isinstance(server.get("nodes"), list):
            return cls(None)
        rows = [
            _Node(
                str(row.get("node_id")),
                _text(row.get("name")),
                str(row.get("status")),
                _key(_text(row.get("public_key"))),
            )
            for row in _rows(server["nodes"])
        ]
        return cls(tuple(row for row in rows if row.status not in {"unregistered", "deleted"}))

    @property
    def named(self) -> bool:
        """Whether names or keys were told; ids alone say nothing of boards."""
        return self.known is not None and (not self.known or any(node.name or node.key for node in self.known))

    def called(self, name: str) -> list[_Node]:
        return [node for node in self.known or () if node.name == name]

    def with_key(self, key: bytes | None) -> _Node | None:
        return next((node for node in self.known or () if key is not None and node.key == key), None)


def _key(text: str | None) -> bytes | None:
    """The point of an elliptic-curve key: the end of both OpenSSH's form and of a PEM's."""
    if text is None:
        return None
    body = "".join(line for line in text.split("\n") if "-----" not in line) if "-----" in text else text
    words = body.split()
    try:
        raw = base64.b64decode(words[1] if len(words) > 1 and "-----" not in text else "".join(words), validate=True)
    except (ValueError, binascii.Error):
        return None
    return raw[-64:] if len(raw) > 64 else None


@dataclass(frozen=True, slots=True)
class _Common:
    own: Own
    nodes: _Nodes | None
    server_clock: _Clock | None
    server_flwr: str | None
    twins: Mapping[str, tuple[str, ...]]


def _twins(told: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each board the others that have its name or its key."""
    facts = {name: _map(_map(told.get(name)).get("facts")) for name in names}
    marks = {
        name: [mark for mark in (_text(has.get("board")), _key(_text(has.get("public_key")))) if mark is not None]
        for name, has in facts.items()
    }
    shared = Counter(mark for of_one in marks.values() for mark in of_one)
    suspects = [name for name, of_one in marks.items() if any(shared[mark] > 1 for mark in of_one)]
    return {
        name: tuple(other for other in suspects if other != name and set(marks[other]) & set(marks[name]))
        for name in suspects
    }


# A board


@dataclass(frozen=True, slots=True)
class _Case:
    """A board that answered, with what it is judged by."""

    name: str
    facts: Facts
    common: _Common
    node: _Node | None
    clock: _Clock | None

    def part(self, name: str) -> Facts:
        return _map(self.facts.get(name))

    def service(self, name: str) -> Facts:
        return _map(self.part("services").get(name))

    @property
    def online(self) -> bool:
        return self.node is not None and self.node.status == "online"

    def cure(self, verb: str, *more: str) -> str:
        return f"fedge fleet {verb} --limit {','.join((*more, self.name))}"


def _board(name: str, told: object, common: _Common, lost: str | None) -> Board:
    facts = _map(_map(told).get("facts"))
    kind = facts.get("kind")
    if not _map(told):
        why = f" ({lost})" if lost else ""
        cure = f"ssh to it by hand; is it on, is its address in the inventory right, its host key known: ssh {name}"
        return Board(name, "unreachable", (Finding("wrong", f"cannot be reached by ssh{why}", cure),))
    if kind == "bare":
        bare = Finding("wrong", "bare: fedge is not on it", f"fedge fleet provision --limit {name}")
        return Board(name, "bare", (bare,))
    if kind != "board":
        text = _text(facts.get("text")) or "it answered with something else than facts"
        cure = f"ssh {name}, then: sudo /usr/lib/fedge-python/bin/python3 -V; fedge fleet provision --limit {name}"
        return Board(name, "failed", (Finding("wrong", f"could not be asked: {text}", cure),))
    key = _key(_text(facts.get("public_key")))
    node = None
    if common.nodes is not None:
        named = common.nodes.called(name)
        node = common.nodes.with_key(key) or (named[0] if key is None and named else None)
    case = _Case(name, facts, common, node, _against(_clock(_map(told)), common.server_clock))
    return _record(case, tuple(finding for rule in RULES for finding in rule(case)))


def _against(clock: _Clock | None, server: _Clock | None) -> _Clock | None:
    """A board's clock against the server's, both known against the control node's."""
    if clock is None or server is None:
        return None
    return _Clock(clock.least_s - server.most_s, clock.most_s - server.least_s)


def _record(case: _Case, findings: tuple[Finding, ...]) -> Board:
    powerd, worker, speaks = case.part("powerd"), case.part("worker"), case.part("client")
    claim, free = case.part("claim"), [_number(value) for value in case.part("disk_free_mb").values()]
    mode = {str(knob): _number(value) for knob, value in _map(powerd.get("mode")).items()}
    versions = {
        "fedge": case.facts.get("fedge"),
        "python": case.facts.get("python"),
        "flwr": speaks.get("flwr"),
        "torch": worker.get("torch"),
        "powerd": powerd.get("version"),
        "worker": worker.get("version"),
    }
    least_free = [value for value in free if value is not None]
    return Board(
        name=case.name,
        state="up",
        findings=findings,
        model=_text(case.facts.get("model")),
        versions={name: version for name, version in versions.items() if isinstance(version, str)},
        node_id=case.node.node_id if case.node else None,
        node=case.node.status if case.node else None,
        services={name: str(case.service(name).get("state", "unknown")) for name in SERVICES},
        powerd=_error(powerd) or ("answers" if powerd else None),
        worker=_error(worker) or _text(worker.get("state")) or ("answers" if worker else None),
        mode={knob: value for knob, value in mode.items() if value is not None},
        preset=_text(powerd.get("preset")),
        holder=_text(powerd.get("holder")),
        temperature_c=_number(powerd.get("temperature_c")),
        free_mb=min(least_free, default=None),
        offset_s=case.clock.middle_s if case.clock else None,
        give_s=case.clock.give_s if case.clock else None,
        run=_text(claim.get("run")),
        run_left_s=_number(claim.get("left_s")),
    )


# Rules: each says what it finds of one board


def _name(case: _Case) -> Iterator[Finding]:
    called = _text(case.facts.get("board"))
    if called is not None and called != case.name:
        what = f"it calls itself {called}, the inventory calls it {case.name}"
        yield Finding("wrong", what, case.cure("provision"))
    for other in case.common.twins.get(case.name, ()):
        what = f"has the name or the key of {other} too: one was copied from the other, or both names lead to one board"
        mend = case.cure("provision", "server")
        cure = f"give each an address of its own; on a copy: sudo rm /etc/fedge/keys/node*, then {mend}"
        yield Finding("wrong", what, cure)


def _services(case: _Case) -> Iterator[Finding]:
    states = {name: str(case.service(name).get("state")) for name in SERVICES if case.service(name)}
    if states and set(states.values()) == {"absent"}:
        yield Finding("wrong", "none of fedge's services is installed", case.cure("provision"))
        return
    if states and set(states.values()) == {"inactive"}:
        yield Finding("wrong", "its services are stopped", case.cure("up"))
        return
    refused = _refusal(case) is not None
    for name in states:
        if name != SUPERNODE or not refused:
            yield from _service(case, name)


def _service(case: _Case, name: str) -> Iterator[Finding]:
    has = case.service(name)
    state, restarts = str(has.get("state")), _number(has.get("restarts")) or 0
    line = telling(_lines(has.get("log")))
    said = f'; it said: "{line}"' if line else ""
    look = f"on the board: journalctl -u {name}; then {case.cure('up')}"
    if _error(has) is not None:
        yield _unasked(name, has)
    elif state == "absent":
        yield Finding("wrong", f"{name} is not installed", case.cure("provision"))
    elif state == "inactive":
        yield Finding("wrong", f"{name} is stopped", case.cure("up"))
    elif state == "failed":
        yield Finding("wrong", f"{name} has failed{said}", look)
    elif state == "activating" and restarts > 0:
        yield Finding("wrong", f"{name} ends and is started again, {restarts:.0f} times so far{said}", look)
    elif state == "active" and restarts >= RESTARTS:
        yield Finding(
            "note", f"{name} runs, after {restarts:.0f} restarts{said}", f"fedge fleet logs --limit {case.name}"
        )
    elif state != "active":
        yield Finding("note", f"{name} is {state}{said}", look)


def _unasked(name: str, has: Facts) -> Finding:
    what = f"what {name} does could not be asked: {has.get('text')}"
    return Finding("wrong", what, f"on the host: systemctl status {name}")


def _half_upgraded(case: _Case) -> Iterator[Finding]:
    """Every pair that must agree, named by what each has."""
    speaks, own = case.part("client"), case.common.own
    cure = case.cure("upgrade")
    if _error(speaks):
        yield Finding("wrong", f"the client on it cannot be read: {speaks.get('text')}", case.cure("provision"))
    for part, who, mine in (("powerd", "power daemon", own.powerd_protocol), ("worker", "worker", own.worker_protocol)):
        theirs, clients = _number(case.part(part).get("protocol")), _number(speaks.get(f"{part}_protocol"))
        if theirs is not None and clients is not None and theirs != clients:
            yield Finding("wrong", f"half upgraded: {who} speaks protocol {theirs:g}, the client {clients:g}", cure)
        elif (heard := theirs if theirs is not None else clients) is not None and heard != mine:
            yield Finding("wrong", f"{who} speaks protocol {heard:g}, this control node {mine}", cure)
    flwr = _text(speaks.get("flwr"))
    for who, version in (("the SuperLink", case.common.server_flwr), ("this control node", own.flwr)):
        if flwr is not None and version is not None and _minor(flwr) != _minor(version):
            yield Finding("wrong", f"has flwr {flwr}, {who} {version}: they do not speak to each other", cure)
            break
    fedge = _text(case.facts.get("fedge"))
    if fedge is not None and fedge != own.fedge:
        yield Finding("note", f"has fedge {fedge}, this control node {own.fedge}", cure)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _sockets(case: _Case) -> Iterator[Finding]:
    for part, who, unit in (("powerd", "power daemon", "fedge-powerd"), ("worker", "worker", "fedge-worker")):
        error, text = _error(case.part(part)), case.part(part).get("text")
        if error == "denied":
            yield Finding("wrong", f"fedge-app may not ask the {who}: {text}", case.cure("provision"))
        elif error and case.service(unit).get("state") in ("active", None):
            yield Finding(
                "wrong",
                f"the {who} does not answer: {text}",
                f"on the board: journalctl -u {unit}; then {case.cure('up')}",
            )


def _power(case: _Case) -> Iterator[Finding]:
    powerd = case.part("powerd")
    holder, left_s = _text(powerd.get("holder")), _number(powerd.get("holder_left_s"))
    hot_c, stopped = _number(powerd.get("temperature_c")), _text(powerd.get("stopped"))
    if holder is not None:
        left = f" for {left_s:.0f} s more" if left_s is not None else ""
        yield Finding("note", f"the power daemon holds its mode for {holder}{left}", "wait, or stop what holds it")
    if stopped is not None:
        yield Finding(
            "wrong", f"the power daemon refuses changes: {stopped}", "on the board: journalctl -u fedge-powerd"
        )
    if hot_c is not None and hot_c >= HOT_C:
        yield Finding(
            "note", f"{hot_c:.0f} C hot", "look at its fan and its surroundings; the mode may be limited by heat"
        )


def _disk(case: _Case) -> Iterator[Finding]:
    yield from _full(case.part("disk_free_mb"), f"on the board: sudo du -xhd1 /var /srv | sort -h ({case.name})")


def _full(free_mb: Facts, cure: str) -> Iterator[Finding]:
    for folder, value in free_mb.items():
        free = _number(value)
        if free is not None and free < LEAST_FREE_MB:
            yield Finding("wrong", f"only {free:.0f} MB free at {folder}; {LEAST_FREE_MB} are needed", cure)


def _time(case: _Case) -> Iterator[Finding]:
    clock = case.clock
    if clock is None:
        return
    side = "ahead of" if clock.middle_s > 0 else "behind"
    what = f"its clock is {duration(abs(clock.middle_s))} {side} the server's (give or take {duration(clock.give_s)})"
    cure = (
        "on the board: sudo chronyc makestep; jetson_base_time_servers in the inventory names a server that it reaches"
    )
    if clock.least_s > AHEAD_S or clock.most_s < -BEHIND_S:
        yield Finding("wrong", f"{what}; the SuperLink takes 5 s ahead and 5 min behind", cure)


def _node(case: _Case) -> Iterator[Finding]:
    nodes = case.common.nodes
    if nodes is None or nodes.known is None or not nodes.named:
        return
    named, key = nodes.called(case.name), _key(_text(case.facts.get("public_key")))
    register = case.cure("provision", "server")
    refusal = _refusal(case)
    if case.node is None and refusal is not None and "not registered" in refusal.what:
        return
    if case.node is None:
        other = f"; another key is registered as {case.name}" if named else ""
        yield Finding("wrong", f"its key is not registered at the SuperLink{other}", register)
    elif case.node.name is not None and case.node.name != case.name:
        what = f"its key is registered as {case.node.name}"
        yield Finding("wrong", what, f"{unregister(case.node.node_id)}; then {register}")
    elif not case.online and refusal is None:
        what = f"its node is {case.node.status}, not online"
        yield Finding("wrong", what, f"on the board: journalctl -u {SUPERNODE}; then {case.cure('up')}")
    for node in named:
        if key is not None and node.key is not None and node.key != key:
            what = f"node {node.node_id} has its name and another key, of before"
            yield Finding("note" if case.online else "wrong", what, unregister(node.node_id))


def unregister(node_id: str) -> str:
    """The command that makes the SuperLink forget a node."""
    link = "sudo -u fedge-link env FLWR_HOME=/var/lib/fedge-link/cli"
    return f"on the server: {link} flwr supernode unregister {node_id} fleet"


# What the SuperNode says when it does not get in


def _supernode(case: _Case) -> Iterator[Finding]:
    found = _refusal(case)
    if found is not None:
        yield found


def _refusal(case: _Case) -> Finding | None:
    """Why the SuperLink does not know the board as online, from the SuperNode's last try; None when nothing says so."""
    if case.online or case.service(SUPERNODE).get("state") not in ("active", "activating", "failed"):
        return None
    text = "\n".join(last_try(_lines(case.service(SUPERNODE).get("log"))))
    address = _text(case.facts.get("superlink")) or "the SuperLink"
    for pattern, words in REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return words(case, address)
    return _no_way(case, address) if _error(case.part("way")) else None


def last_try(log: Sequence[str]) -> list[str]:
    """The lines since the SuperNode's last start, if they say when that was."""
    starts = [number for number, line in enumerate(log) if "Starting Flower SuperNode" in line]
    # A try that has only just begun says nothing yet: then those before it, too.
    told = [number for number in starts if len(log) - number > START_LINES]
    return list(log[told[-1] :]) if told else list(log)


Words = Callable[[_Case, str], Finding | None]


def _wrong_name(case: _Case, address: str) -> Finding:
    host = address.rpartition(":")[0]
    what = f"it dials {host}, which is not in the server's certificate"
    renew = f"fedge fleet keys --out KEYS --renew --host {host} (and every other name)"
    return Finding("wrong", what, f"{renew}, then fedge fleet provision --limit server")


def _expired(_case: _Case, address: str) -> Finding:
    what = f"the certificate at {address} does not hold today by the board's clock"
    return Finding("wrong", what, "fedge fleet keys --out KEYS --check, and look at the board's clock")


def _wrong_ca(case: _Case, address: str) -> Finding:
    what = f"it does not trust the certificate at {address}: another CA signed it than the ca.crt on the board"
    return Finding(
        "wrong", what, f"supernode_ca_certificate in the inventory: the CA of server.crt; then {case.cure('provision')}"
    )


def _plain(case: _Case, address: str) -> Finding:
    what = f"it speaks plain text to {address}, which takes TLS alone"
    return Finding("wrong", what, case.cure("provision"))


def _no_tls(case: _Case, address: str) -> Finding:
    what = f"what listens at {address} does not speak TLS; it is not the proxy before the SuperLink"
    return Finding(
        "wrong", what, f"supernode_superlink in the inventory: the boards' port; then {case.cure('provision')}"
    )


def _no_key(case: _Case, _address: str) -> Finding:
    return Finding("wrong", "its SuperNode runs without its key, and is refused", case.cure("provision"))


def _not_activated(case: _Case, _address: str) -> Finding:
    if case.node is None:
        what = "its key is not registered at the SuperLink, which refuses it (Flower's exit code 305)"
        return Finding("wrong", what, case.cure("provision", "server"))
    what = "its key is registered and yet refused: another SuperNode is online with it, or was until a minute ago"
    return Finding("wrong", what, "wait a minute; if it stays so, look which other board has a copy of its key")


def _forbidden(case: _Case, address: str) -> Finding:
    what = f"what listens at {address} refuses what a SuperNode asks for (403)"
    return Finding(
        "wrong", what, f"supernode_superlink in the inventory: the boards' port; then {case.cure('provision')}"
    )


def _turned_away(case: _Case, _address: str) -> Finding | None:
    """It ends without a word and with exit code 0, as it does when it is told to stop."""
    if not _number(case.service(SUPERNODE).get("restarts")):
        return None
    clock = case.clock
    off = f"; its clock is off by {duration(abs(clock.middle_s))}" if clock and abs(clock.middle_s) > AHEAD_S else ""
    what = f"the SuperLink refuses its signature, as it does with a clock more than 5 s ahead or 5 min behind{off}"
    return Finding("wrong", what, "on the board: date; sudo chronyc makestep; the server's clock may be the wrong one")


def _no_way(case: _Case, address: str) -> Finding:
    error, text = _error(case.part("way")), case.part("way").get("text")
    host = address.rpartition(":")[0]
    if error == "unresolved":
        cure = f"an address in supernode_superlink, or a line for {host} in the board's /etc/hosts"
        return Finding("wrong", f"it does not know the name {host}", cure)
    if error == "refused":
        cure = "fedge fleet up --limit server; is supernode_superlink the port of the proxy?"
        return Finding("wrong", f"nobody listens at {address}: the proxy before the SuperLink is down", cure)
    if case.part("way").get("ok") is True:
        what = f"its SuperNode could not connect to {address} a while ago; it can be reached now"
        return Finding("note", what, "wait a minute, then ask again")
    what = f"it does not reach {address}" + (f" ({text})" if error else "")
    from_board = f"from the board: nc -vz {address.replace(':', ' ')}"
    return Finding("wrong", what, f"the network between them, the server's firewall; {from_board}")


REFUSALS: Sequence[tuple[str, Words]] = (
    (r"certificate is not valid for|hostname mismatch|ip address mismatch", _wrong_name),
    (r"certificate has expired|certificate is not yet valid", _expired),
    (r"certificate verify failed|certificate_verify_failed", _wrong_ca),
    (r"wrong.version.number", _no_tls),
    (r"400 bad request|option `--insecure` was set", _plain),
    (r"code: 2001\b|authentication is enabled", _no_key),
    (r"code: 2004\b|failed to activate supernode", _not_activated),
    (r"403 forbidden", _forbidden),
    (r"terminated gracefully|401 unauthorized", _turned_away),
    (r"connection attempt failed", _no_way),
)
"""What Flower 1.41's SuperNode logs when it does not get in; the first that fits is the cause."""

SYSTEMD = re.compile(r"^(\S+\.service: |Started |Stopped |Stopping |Starting |Failed to start |Main process)")
BAD = re.compile(r"(?i)error|exception|fail|refus|denied|cannot|no such|not found|killed")


def telling(log: Sequence[str]) -> str:
    """The line of a service's log that most likely says why it ended; "" when there is none."""
    own = [line for line in log if not SYSTEMD.match(line)] or list(log)
    bad = [line for line in own if BAD.search(line)]
    return (bad or own or [""])[-1]


RULES: Sequence[Callable[[_Case], Iterator[Finding]]] = (
    _name,
    _services,
    _half_upgraded,
    _sockets,
    _supernode,
    _node,
    _time,
    _disk,
    _power,
)


# The server


def _server(fleet: Fleet, told: Facts, nodes: _Nodes | None, lost: str | None) -> Server:
    name, facts = str(fleet.server), _map(told.get("facts"))
    if not told:
        why = f" ({lost})" if lost else ""
        return Server(name, "unreachable", (Finding("wrong", f"cannot be reached by ssh{why}", f"ssh {name}"),))
    if facts.get("kind") != "server":
        bare = facts.get("kind") == "bare"
        text = "it has no Python" if bare else _text(facts.get("text")) or "it answered with something else than facts"
        found = Finding("wrong", f"could not be asked: {text}", f"fedge fleet provision --limit {name}")
        return Server(name, "bare" if bare else "failed", (found,))
    services = _map(facts.get("services"))
    free = [_number(value) for value in _map(facts.get("disk_free_mb")).values()]
    findings = (
        *_down(services, name),
        *_strangers(fleet, facts, nodes),
        *_full(_map(facts.get("disk_free_mb")), "on the server: sudo du -xhd1 /var | sort -h"),
        *_ending(_map(facts.get("certificates")), _number(facts.get("at_s"))),
    )
    return Server(
        name=name,
        state="up",
        findings=findings,
        services={unit: str(_map(services.get(unit)).get("state", "unknown")) for unit in SERVER_SERVICES},
        runs=tuple(str(run.get("name") or run.get("run_id")) for run in _rows(facts.get("runs"))),
        free_mb=min([value for value in free if value is not None], default=None),
    )


def _down(services: Facts, name: str) -> Iterator[Finding]:
    effects = {"fedge-superlink": "no board gets work", "nginx": "no board gets in"}
    for unit, effect in effects.items():
        has = _map(services.get(unit))
        state = has.get("state")
        if _error(has) is not None:
            yield _unasked(unit, has)
            continue
        if state is None or state == "active":
            continue
        line = telling(_lines(has.get("log"))) if state != "absent" else ""
        said = f'; it said: "{line}"' if line else ""
        cure = "docs/fleet.md says how to put it there" if (unit, state) == ("nginx", "absent") else ""
        verb = "provision" if state == "absent" else "up"
        yield Finding("wrong", f"{unit} is {state}, so {effect}{said}", cure or f"fedge fleet {verb} --limit {name}")


def _strangers(fleet: Fleet, facts: Facts, nodes: _Nodes | None) -> Iterator[Finding]:
    error = _error(facts.get("nodes"))
    if error is not None and _map(_map(facts.get("services")).get("fedge-superlink")).get("state") == "active":
        text = _map(facts.get("nodes")).get("text")
        yield Finding(
            "wrong", f"the SuperLink does not say which nodes it knows: {text}", "journalctl -u fedge-superlink"
        )
    if nodes is not None and nodes.known and not nodes.named:
        count = Counter(node.status for node in nodes.known)
        text = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
        yield Finding("note", f"the SuperLink tells neither names nor keys of its nodes ({text})", "")
    for node in (nodes.known if nodes is not None else None) or ():
        if node.name is not None and node.name not in fleet.boards:
            what = f"node {node.node_id}, registered as {node.name}, is not in the inventory"
            yield Finding("note", what, f"add it to the inventory, or {unregister(node.node_id)}")


def _ending(certificates: Facts, now_s: float | None) -> Iterator[Finding]:
    for name, value in certificates.items():
        ends_s = _number(value)
        if ends_s is None or now_s is None:
            continue
        days = (ends_s - now_s) / 86400
        renew = "fedge fleet keys --out KEYS --renew, then fedge fleet provision --limit server"
        cure = renew if name == "server.crt" else "a new CA in a new folder: fedge fleet keys --out NEW (docs/fleet.md)"
        if days < 0:
            yield Finding("wrong", f"{name} ended {duration(-days * 86400)} ago", cure)
        elif days < CERTIFICATE_DAYS:
            yield Finding("wrong", f"{name} ends in {days:.0f} days", cure)


def duration(seconds: float) -> str:
    """A time span as people say it."""
    for unit_s, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
