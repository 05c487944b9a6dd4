"""All inputs of the board rules, with their thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.fleet.status.host_facts import ClockOffset, Facts, as_mapping, as_number, as_text
from experiments.fleet.status.status_records import ControlNode
from experiments.fleet.status.superlink_nodes import SuperlinkNode, SuperlinkNodes, parse_public_key

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
        server_clock: The server's clock offset against the control node.
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
    """A board that replied, as the rules see it.

    Attributes:
        node: Its node at the SuperLink, if registered.
        clock: Its clock offset against the server.
    """

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
