"""Status records of a fleet: one per board and one for the server, each with findings and remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["note", "wrong"]
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
    return HostFinding("wrong", what, cure)


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
        asked: The boards that were queried this time.
        server: The server, if it is in the inventory.
    """

    boards: tuple[str, ...]
    asked: tuple[str, ...]
    server: str | None = None


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """Status of one board; unknown values are None.

    Attributes:
        node: The node's state at the SuperLink.
        mode: Current power mode, value by knob.
        holder: Program that holds the power mode.
        free_mb: Smallest free disk space, in MB.
        offset_s: The board's clock minus the server's, in seconds.
        give_s: Uncertainty of ``offset_s``, in seconds.
        run_left_s: Remaining time of the current run, in seconds.
    """

    name: str
    state: HostState
    findings: tuple[HostFinding, ...] = ()
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
    """Status of the server; ``runs`` lists the runs that have not ended."""

    name: str
    state: HostState
    findings: tuple[HostFinding, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    free_mb: float | None = None

    @property
    def is_healthy(self) -> bool:
        return _are_harmless(self.findings)


def _are_harmless(findings: tuple[HostFinding, ...]) -> bool:
    return all(finding.severity != "wrong" for finding in findings)


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Status of the whole fleet; ``server`` is None if it was not queried."""

    boards: tuple[BoardStatus, ...]
    server: ServerStatus | None = None

    @property
    def is_healthy(self) -> bool:
        return all(board.is_healthy for board in self.boards) and (self.server is None or self.server.is_healthy)
