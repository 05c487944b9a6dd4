"""Nodes registered at the SuperLink, looked up by a board's name or public key."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from experiments.fleet.status.host_facts import Facts, as_rows, as_text

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


def unregister_command(node_id: str) -> str:
    """Return the command that unregisters a node from the SuperLink."""
    return f"on the server: sudo /usr/lib/fedge-server/flower flwr supernode unregister {node_id} fleet"
