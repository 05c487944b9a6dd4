"""The status of a fleet as records: one per board, one of the server, and what was found of each with its cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["note", "wrong"]
HostState = Literal["up", "bare", "failed", "unreachable"]


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One thing about a host: how bad it is, in words, and the command or deed that mends it."""

    severity: Severity
    what: str
    cure: str = ""


def make_problem(what: str, cure: str = "") -> HostFinding:
    """Something that keeps the host from its work."""
    return HostFinding("wrong", what, cure)


def make_note(what: str, cure: str = "") -> HostFinding:
    """Something worth knowing of a host that works."""
    return HostFinding("note", what, cure)


@dataclass(frozen=True, slots=True)
class ControlNode:
    """What the control node itself has: its versions, the protocols that it speaks."""

    fedge: str
    flwr: str
    powerd_protocol: int
    worker_protocol: int


@dataclass(frozen=True, slots=True)
class FleetHosts:
    """The names in the inventory; ``asked`` are those of ``boards`` that were asked this time."""

    boards: tuple[str, ...]
    asked: tuple[str, ...]
    server: str | None = None


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """One board. What is not known is None; ``offset_s`` is its clock minus the server's, give or take ``give_s``."""

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
    """Seconds since the server last heard of it, where it tells of itself."""
    certificate_left_s: float | None = None
    """Until the certificate ends by which it does; negative: it has ended."""

    @property
    def is_healthy(self) -> bool:
        return _are_harmless(self.findings)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The server; ``runs`` are those that have not ended."""

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
    """The whole fleet; ``server`` is None where it was not asked."""

    boards: tuple[BoardStatus, ...]
    server: ServerStatus | None = None

    @property
    def is_healthy(self) -> bool:
        return all(board.is_healthy for board in self.boards) and (self.server is None or self.server.is_healthy)
