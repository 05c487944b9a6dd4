"""A board that answered, with everything that it is judged by; and the limits, chosen by us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.fleet.status.clock_offset import ClockOffset
from experiments.fleet.status.host_facts import Facts, as_mapping, as_number, as_text
from experiments.fleet.status.status_records import ControlNode
from experiments.fleet.status.superlink_nodes import SuperlinkNode, SuperlinkNodes, parse_public_key

SERVICES = ("fedge-powerd", "fedge-worker", "fedge-supernode", "fedge-ready", "fedge-superexec")
OPTIONAL_SERVICES = ("fedge-telemetry",)
"""Services that an inventory may do without: told where they are installed."""
SUPERNODE = "fedge-supernode"
TELEMETRY = "fedge-telemetry"

# Chosen by us. Flower itself takes a board that is up to 5 s ahead and 300 s behind.
AHEAD_S, BEHIND_S = 2.0, 60.0
HOT_C = 90.0
LEAST_FREE_MB = 500
RESTARTS = 3
SILENT_S = 60.0
"""A board tells of itself once a second, and tries again after at most half a minute."""
CERTIFICATE_DAYS = 14
"""Provisioning makes a new one long before."""


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """What all boards are judged by; ``twins`` are for each board the others that have its name or its key."""

    own: ControlNode
    nodes: SuperlinkNodes | None
    server_clock: ClockOffset | None
    server_flwr: str | None
    twins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ages_s: Facts | None = None
    """For each board how long ago it last told of itself; None where the server does not say."""


@dataclass(frozen=True, slots=True)
class BoardCase:
    """A board that answered: its facts, its node at the SuperLink, its clock against the server's."""

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
        """How long ago the server last heard of it."""
        return as_number(as_mapping(self.common.ages_s).get(self.name))

    @property
    def certificate_left_s(self) -> float | None:
        """Seconds until the certificate of its telemetry ends."""
        ends_s, now_s = as_number(self.facts.get("certificate")), as_number(self.facts.get("at_s"))
        return None if ends_s is None or now_s is None else ends_s - now_s

    @property
    def superlink(self) -> str:
        """``host:port`` that its SuperNode dials."""
        return as_text(self.facts.get("superlink")) or "the SuperLink"

    @property
    def superlink_host(self) -> str:
        return self.superlink.rpartition(":")[0]

    def cure_command(self, verb: str, *more: str) -> str:
        """The command of ours that mends this board, and ``more`` hosts with it."""
        return f"fedge fleet {verb} --limit {','.join((*more, self.name))}"
