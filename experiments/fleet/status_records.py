"""Records of a fleet's status, and the untrusted facts that they are made of: any input is accepted."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Facts = Mapping[str, Any]
UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


def as_mapping(value: object) -> Facts:
    """Return the value if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_rows(value: object) -> list[Facts]:
    """Return the mappings in a list; other items are dropped."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def as_lines(value: object) -> list[str]:
    """Return the strings in a list; other items are dropped."""
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """Return the value if it is a non-empty string, otherwise None."""
    return value if isinstance(value, str) and value else None


def as_number(value: object) -> float | None:
    """Return the value as a finite float, otherwise None; booleans do not count as numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def error_kind(value: object) -> str | None:
    """Return the kind of error reported in place of a fact, or None."""
    found = as_mapping(value)
    return str(found["error"]) if "error" in found else None


def least_free_mb(free_mb: object) -> float | None:
    """Return the smallest free space among several folders, in MB."""
    known = [free for value in as_mapping(free_mb).values() if (free := as_number(value)) is not None]
    return min(known, default=None)


# Clocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Lower and upper bound on how far one clock is ahead of another, in seconds.

    Each remote reading lies between two readings of the control node's clock.
    """

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def uncertainty_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def measure_offset(told: Facts) -> ClockOffset | None:
    """Bound a host's clock offset against the control node.

    Args:
        told: ``asked_at_s`` and ``answered_at_s`` by the control node's clock, and the host's ``facts`` with ``at_s``
            and optionally ``done_at_s`` by the host's clock (Unix time, seconds).

    Returns:
        The bounds, or None if a reading is missing.
    """
    facts = as_mapping(told.get("facts"))
    asked_s, answered_s, at_s = (
        as_number(told.get("asked_at_s")),
        as_number(told.get("answered_at_s")),
        as_number(facts.get("at_s")),
    )
    if asked_s is None or answered_s is None or at_s is None:
        return None
    done_s = as_number(facts.get("done_at_s"))
    return ClockOffset((at_s if done_s is None else done_s) - answered_s, at_s - asked_s)


def subtract_offset(clock: ClockOffset | None, server: ClockOffset | None) -> ClockOffset | None:
    """Bound a board's clock offset against the server from both offsets against the control node."""
    if clock is None or server is None:
        return None
    return ClockOffset(clock.least_s - server.most_s, clock.most_s - server.least_s)


def format_duration(seconds: float) -> str:
    """Format a duration for people, in the largest fitting unit."""
    for unit_s, unit in UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


GONE_STATES = frozenset({"unregistered", "deleted"})
POINT_BYTES = 64
"""Trailing bytes of an encoded public key that identify it: the two coordinates of the curve point."""


@dataclass(frozen=True, slots=True)
class SuperlinkNode:
    """One registered node.

    Attributes:
        name: Name under which it was registered, if known.
        key: Point of its public key, see ``parse_public_key``.
    """

    node_id: str
    name: str | None
    status: str
    key: bytes | None

    @classmethod
    def from_row(cls, row: Facts) -> SuperlinkNode:
        return cls(
            str(row.get("node_id")),
            as_text(row.get("name")),
            str(row.get("status")),
            parse_public_key(as_text(row.get("public_key"))),
        )


@dataclass(frozen=True, slots=True)
class SuperlinkNodes:
    """The registered nodes; ``known`` is None if the SuperLink did not list them."""

    known: tuple[SuperlinkNode, ...] | None

    @classmethod
    def from_server(cls, server: Facts) -> SuperlinkNodes:
        if not isinstance(server.get("nodes"), list):
            return cls(None)
        nodes = (SuperlinkNode.from_row(row) for row in as_rows(server["nodes"]))
        return cls(tuple(node for node in nodes if node.status not in GONE_STATES))

    @property
    def has_names(self) -> bool:
        """Whether names or keys are known; ids alone do not identify boards."""
        return self.known is not None and (not self.known or any(node.name or node.key for node in self.known))

    def find_by_name(self, name: str) -> list[SuperlinkNode]:
        return [node for node in self.known or () if node.name == name]

    def find_board_node(self, name: str, key: bytes | None) -> SuperlinkNode | None:
        """Return the node with the board's key or, if its key is unknown, the one with its name."""
        if key is not None:
            return next((node for node in self.known or () if node.key == key), None)
        return next(iter(self.find_by_name(name)), None)


def parse_public_key(told: str | None) -> bytes | None:
    """Return the curve point of a public key, which ends both OpenSSH's and PEM's encodings, or None if unreadable."""
    if told is None:
        return None
    pem = "-----" in told
    words = " ".join(line for line in told.split("\n") if "-----" not in line).split()
    body = words[1] if len(words) > 1 and not pem else "".join(words)
    try:
        raw = base64.b64decode(body, validate=True)
    except (ValueError, binascii.Error):
        return None
    return raw[-POINT_BYTES:] if len(raw) > POINT_BYTES else None


ON_BOARD, ON_SERVER = "on the board", "on the server"
"""Where the commands of a remedy are to be given."""


def unregister_command(node_id: str) -> str:
    """Return the command that unregisters a node from the SuperLink."""
    return f"{ON_SERVER}: sudo /usr/lib/fedge-server/flower flwr supernode unregister {node_id} fleet"


Severity = Literal["note", "fault"]
HostState = Literal["up", "bare", "failed", "unreachable"]


@dataclass(frozen=True, slots=True)
class HostFinding:
    """A finding on a host.

    Attributes:
        cure: The command or action that fixes it; empty if there is none.
    """

    severity: Severity
    what: str
    cure: str = ""


def make_problem(what: str, cure: str = "") -> HostFinding:
    """Create a finding that keeps the host from working."""
    return HostFinding("fault", what, cure)


def make_note(what: str, cure: str = "") -> HostFinding:
    """Create an informative finding on a host that works."""
    return HostFinding("note", what, cure)


@dataclass(frozen=True, slots=True)
class ControlNode:
    """Versions and protocol numbers of the control node."""

    fedge: str
    flwr: str
    powerd_protocol: int
    worker_protocol: int


@dataclass(frozen=True, slots=True)
class FleetHosts:
    """Host names in the inventory.

    Attributes:
        server: The server, if it is in the inventory.
        logins: What a person gives to ssh to log in, by host; the host's name if it is missing.
    """

    boards: tuple[str, ...]
    asked: tuple[str, ...]
    server: str | None = None
    logins: Mapping[str, str] = field(default_factory=dict)

    def login(self, host: str) -> str:
        return self.logins.get(host, host)


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """Status of one board; unknown values are None.

    Attributes:
        node: The node's state at the SuperLink.
        offset_s: The board's clock minus the server's, in seconds.
        give_s: Uncertainty of ``offset_s``, in seconds.
        login: What a person gives to ssh to log in.
    """

    name: str
    state: HostState
    findings: tuple[HostFinding, ...] = ()
    login: str = ""
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
    heard_s: float | None = None
    """Seconds since the server last received telemetry from the board, if it sends any."""
    certificate_left_s: float | None = None
    """Seconds until its telemetry certificate expires; negative if it has."""

    @property
    def is_healthy(self) -> bool:
        return _are_harmless(self.findings)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Status of the server.

    Attributes:
        login: What a person gives to ssh to log in.
        runs: The runs that have not ended.
    """

    name: str
    state: HostState
    findings: tuple[HostFinding, ...] = ()
    login: str = ""
    services: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    free_mb: float | None = None

    @property
    def is_healthy(self) -> bool:
        return _are_harmless(self.findings)


def _are_harmless(findings: tuple[HostFinding, ...]) -> bool:
    return all(finding.severity != "fault" for finding in findings)


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Status of the whole fleet; ``server`` is None if it was not queried."""

    boards: tuple[BoardStatus, ...]
    server: ServerStatus | None = None

    @property
    def is_healthy(self) -> bool:
        return all(board.is_healthy for board in self.boards) and (self.server is None or self.server.is_healthy)


SERVICES = ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-ready", "fedge-superexec")
OPTIONAL_SERVICES = ("fedge-telemetry",)
"""Services that an inventory may omit; reported only where they are installed."""
SUPERNODE = "fedge-supernode"
TELEMETRY = "fedge-telemetry"

# Default limits of a board's clock offset. Flower itself accepts boards up to 5 s ahead and 300 s behind.
AHEAD_S, BEHIND_S = 2.0, 60.0
HOT_C = 90.0
LEAST_FREE_MB = 500
RESTARTS = 3
TAKEOVER_RESTARTS = 5
"""Restarts of a SuperNode, one every 15 s, within the minute in which the SuperLink still counts the board as online
after a power cut, and one more."""
SILENT_S = 60.0
"""Silence after which telemetry counts as lost: boards send once a second and retry after at most 30 s."""
CERTIFICATE_DAYS = 14
"""Remaining validity, in days, below which a warning is due; provisioning renews certificates much earlier."""


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """Facts that the rules of all boards share.

    Attributes:
        own: Versions and protocols of the control node.
        nodes: Nodes registered at the SuperLink; None if the server did not report.
        twins: For each board, the other boards with the same name or key.
    """

    own: ControlNode
    nodes: SuperlinkNodes | None
    server_clock: ClockOffset | None
    server_flwr: str | None
    twins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ages_s: Facts | None = None
    """Seconds since each board's last telemetry; None if the server does not report it."""


@dataclass(frozen=True, slots=True)
class BoardCase:
    """A board that replied, as the rules see it."""

    name: str
    facts: Facts
    common: SharedFacts
    node: SuperlinkNode | None
    clock: ClockOffset | None

    def part(self, name: str) -> Facts:
        return as_mapping(self.facts.get(name))

    def service(self, name: str) -> Facts:
        return as_mapping(self.part("services").get(name))

    @property
    def is_online(self) -> bool:
        return self.node is not None and self.node.status == "online"

    @property
    def key(self) -> bytes | None:
        return parse_public_key(as_text(self.facts.get("public_key")))

    @property
    def heard_s(self) -> float | None:
        """Seconds since the server last received telemetry from the board."""
        return as_number(as_mapping(self.common.ages_s).get(self.name))

    @property
    def certificate_left_s(self) -> float | None:
        """Seconds until the board's telemetry certificate expires."""
        ends_s, now_s = as_number(self.facts.get("certificate")), as_number(self.facts.get("at_s"))
        return None if ends_s is None or now_s is None else ends_s - now_s

    @property
    def superlink(self) -> str:
        """SuperLink address (``host:port``) that the board's SuperNode is configured for."""
        return as_text(self.facts.get("superlink")) or "the SuperLink"

    @property
    def superlink_host(self) -> str:
        return self.superlink.rpartition(":")[0]

    def cure_command(self, verb: str, *more: str) -> str:
        """Return the ``fedge fleet`` command that fixes this board and, optionally, further hosts."""
        return f"fedge fleet {verb} --limit {','.join((*more, self.name))}"
