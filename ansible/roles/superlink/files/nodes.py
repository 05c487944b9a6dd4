"""Lists the boards that a SuperLink knows, and registers the inventory's; runs as the SuperLink's own account."""
# ruff: noqa: INP001 - a program that the role brings

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONNECTION = "fleet"
"""The SuperLink's name in the config.toml of FLWR_HOME."""
GONE = "unregistered"
"""Flower's word for a node that was locked out; its key is never taken again."""


@dataclass(frozen=True)
class Node:
    """A board as the SuperLink knows it; ``public_key`` in OpenSSH's form, without a comment."""

    node_id: str
    name: str
    status: str
    public_key: str | None


@dataclass(frozen=True)
class Plan:
    """Boards to register, ids to unregister with the board that each stood for, and what a person should know."""

    register: tuple[str, ...]
    unregister: Mapping[str, str]
    notes: tuple[str, ...]


def plan(nodes: Collection[Node], keys: Mapping[str, str], known: Collection[str]) -> Plan:
    """What lets each board of ``keys`` in with that key alone; ``known`` are the inventory's boards."""
    owners = {node.public_key: node for node in nodes}
    active = [node for node in nodes if node.status != GONE]
    register = tuple(board for board, key in keys.items() if key not in owners)
    # A key that another board has now, as after boards changed their names, is not locked out: that would be for good.
    spare = [node for node in active if node.public_key not in keys.values()]
    stale = {node.node_id: node.name for node in spare if node.name in keys}
    notes = [_note(board, owners[key]) for board, key in keys.items() if key in owners]
    notes += [
        f"{node.name or 'a board without a name'} (node {node.node_id}) is registered and not in the inventory; "
        f"it is left alone: flwr supernode unregister {node.node_id} locks it out"
        for node in spare
        if node.name not in known
    ]
    return Plan(register, stale, tuple(note for note in notes if note))


def _note(board: str, owner: Node) -> str:
    """Why the SuperLink does not know ``board`` by its key, "" if it does."""
    cure = "remove /etc/fedge/keys/node and node.pub on the board and provision it again"
    if owner.status == GONE:
        return f"{board}: its key was unregistered and is never taken again; to let it in, {cure}"
    if owner.name != board:
        return f"{board}: its key is registered as {owner.name!r}; for the new name, {cure}"
    return ""


def main(arguments: Sequence[str]) -> int:
    """One JSON object as the last line; exit code 1 with a sentence when the SuperLink does not answer."""
    asked = _parser().parse_args(arguments)
    try:
        answer = _list() if asked.what == "list" else _register(asked)
    except Exception as error:  # noqa: BLE001 - the edge of the process
        print(f"the SuperLink: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(answer))  # noqa: T201 - its answer
    return 0


def _list() -> dict[str, Any]:
    client = _client()
    try:
        return {"nodes": [asdict(node) for node in _nodes(client)]}
    finally:
        client.close()


def _register(asked: argparse.Namespace) -> dict[str, Any]:
    """Register first: a board that cannot be registered keeps what it had."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    keys = {path.stem: _bare(path.read_text(encoding="utf-8")) for path in asked.keys}
    client = _client()
    try:
        todo = plan(_nodes(client), keys, {*asked.known, *keys})
        for path in asked.keys:
            if path.stem in todo.register and not asked.check:
                key = try_load_public_key(path)
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=path.stem))
        for node_id in todo.unregister:
            if not asked.check:
                client.UnregisterNode(UnregisterNodeRequest(node_id=int(node_id)))
    finally:
        client.close()
    return {**asdict(todo), "changed": bool(todo.register or todo.unregister)}


def _client() -> Any:
    """Flower's own client of its control API: its command line lists no names and no keys."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    return init_http_client_from_connection(read_superlink_connection(CONNECTION))


def _nodes(client: Any) -> list[Node]:
    from flwr.proto.control_pb2 import ListNodesRequest

    found = client.ListNodes(ListNodesRequest()).nodes_info
    return [Node(str(node.node_id), node.name, node.status, _open_ssh(node.public_key)) for node in found]


def _open_ssh(pem: bytes) -> str | None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    if not pem:
        return None
    return load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _bare(line: str) -> str:
    """A public key's line without its comment."""
    return " ".join(line.split()[:2])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("list", help="the boards as JSON")
    register = kinds.add_parser("register", help="the boards whose public keys are given, under their files' names")
    register.add_argument("keys", nargs="*", type=Path, metavar="BOARD.pub")
    register.add_argument("--known", action="append", default=[], metavar="BOARD", help="in the inventory")
    register.add_argument("--check", action="store_true", help="only say what would be done")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
