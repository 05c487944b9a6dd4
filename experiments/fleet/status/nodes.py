"""The nodes that the SuperLink knows, found by a board's name or by its public key."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from experiments.fleet.status.facts import Facts, rows, text

GONE = frozenset({"unregistered", "deleted"})
POINT_BYTES = 64
"""So much of a public key tells it from all others."""


@dataclass(frozen=True, slots=True)
class Node:
    """One registered node; ``key`` as ``key_of`` gives it."""

    node_id: str
    name: str | None
    status: str
    key: bytes | None

    @classmethod
    def of(cls, row: Facts) -> Node:
        return cls(
            str(row.get("node_id")), text(row.get("name")), str(row.get("status")), key_of(text(row.get("public_key")))
        )


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes that the SuperLink knows; None for ``known`` where it did not say."""

    known: tuple[Node, ...] | None

    @classmethod
    def of(cls, server: Facts) -> Nodes:
        if not isinstance(server.get("nodes"), list):
            return cls(None)
        told = (Node.of(row) for row in rows(server["nodes"]))
        return cls(tuple(node for node in told if node.status not in GONE))

    @property
    def named(self) -> bool:
        """Whether names or keys were told; ids alone say nothing of boards."""
        return self.known is not None and (not self.known or any(node.name or node.key for node in self.known))

    def called(self, name: str) -> list[Node]:
        return [node for node in self.known or () if node.name == name]

    def of_board(self, name: str, key: bytes | None) -> Node | None:
        """A board's node is the one with its key; of a board without a known key, the one with its name."""
        if key is not None:
            return next((node for node in self.known or () if node.key == key), None)
        return next(iter(self.called(name)), None)


def key_of(told: str | None) -> bytes | None:
    """The point of an elliptic-curve key: the end of both OpenSSH's form and of a PEM's."""
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


def unregister(node_id: str) -> str:
    """The command that makes the SuperLink forget a node."""
    return f"on the server: sudo /usr/lib/fedge-server/flower flwr supernode unregister {node_id} fleet"
