"""Lists the boards that a SuperLink knows, registers and unregisters them; runs as the SuperLink's own account."""
# ruff: noqa: INP001 - a program that the role brings; "flower" beside it starts it

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

CONNECTION = "fleet"
"""The SuperLink's name in the config.toml of FLWR_HOME."""
GONE = "unregistered"
"""Flower's status of an unregistered node, whose key is never accepted again."""


@dataclass(frozen=True)
class RegisteredNode:
    """A board registered with the SuperLink; ``public_key`` in OpenSSH's form, without a comment."""

    node_id: str
    name: str
    status: str
    public_key: str | None


@dataclass(frozen=True)
class RegistrationPlan:
    """Planned changes of the registration.

    Attributes:
        unregister: Names of the boards to unregister, by node id.
    """

    register: tuple[str, ...]
    unregister: Mapping[str, str]
    notes: tuple[str, ...]


def plan_registration(
    nodes: Collection[RegisteredNode], keys: Mapping[str, str], known: Collection[str]
) -> RegistrationPlan:
    """Plan the changes after which each board can connect with its own key only.

    ``keys`` are the public keys by board, ``known`` the boards of the inventory.
    """
    owners = {node.public_key: node for node in nodes}
    active = [node for node in nodes if node.status != GONE]
    register = tuple(board for board, key in keys.items() if key not in owners)
    # A key that another board uses now (after a renaming) is not unregistered, since that cannot be undone.
    spare = [node for node in active if node.public_key not in keys.values()]
    stale = {node.node_id: node.name for node in spare if node.name in keys}
    notes = [_explain_unknown_key(board, owners[key]) for board, key in keys.items() if key in owners]
    notes += [
        f"{node.name or 'a board without a name'} (node {node.node_id}) is registered and not in the inventory; "
        f"it is left alone: flwr supernode unregister {node.node_id} locks it out"
        for node in spare
        if node.name not in known
    ]
    return RegistrationPlan(register, stale, tuple(note for note in notes if note))


def _explain_unknown_key(board: str, owner: RegisteredNode) -> str:
    """Return why the SuperLink does not accept the board's key, or "" if it does."""
    cure = "remove /etc/fedge/keys/node and node.pub on the board and provision it again"
    if owner.status == GONE:
        return f"{board}: its key was unregistered and is never taken again; to let it in, {cure}"
    if owner.name != board:
        return f"{board}: its key is registered as {owner.name!r}; for the new name, {cure}"
    return ""


def node_ids_named(nodes: Iterable[RegisteredNode], name: str) -> list[str]:
    """Return the ids of the nodes of that name that are not unregistered."""
    return [node.node_id for node in nodes if node.name == name and node.status != GONE]


def main(arguments: Sequence[str]) -> int:
    """Print one JSON object as the last line; exit with code 1 and a sentence if the SuperLink does not answer."""
    asked = _parser().parse_args(arguments)
    try:
        answer = asked.does(asked)
    except Exception as error:  # noqa: BLE001 - the edge of the process
        print(f"the SuperLink: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(answer))  # noqa: T201 - its answer
    return 0


def _list(_asked: argparse.Namespace) -> dict[str, Any]:
    with closing(_client()) as client:
        return {"nodes": [asdict(node) for node in _nodes(client)]}


def _register(asked: argparse.Namespace) -> dict[str, Any]:
    """Register before unregistering, so that a board whose registration fails keeps its old one."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    keys = dict(asked.boards)
    with closing(_client()) as client:
        todo = plan_registration(_nodes(client), keys, {*asked.known, *keys})
        if not asked.check:
            for board in todo.register:
                client.RegisterNode(RegisterNodeRequest(public_key=_pem(keys[board]), name=board))
            _unregister_nodes(client, todo.unregister)
    return {**asdict(todo), "changed": bool(todo.register or todo.unregister)}


def _unregister(asked: argparse.Namespace) -> dict[str, Any]:
    with closing(_client()) as client:
        ids = node_ids_named(_nodes(client), asked.name)
        _unregister_nodes(client, ids)
    return {"unregister": ids, "changed": bool(ids)}


def _unregister_nodes(client: Any, ids: Iterable[str]) -> None:
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    for node_id in ids:
        client.UnregisterNode(UnregisterNodeRequest(node_id=int(node_id)))


def _client() -> Any:
    """Return Flower's own client of its control API, since its command line lists neither names nor keys."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    return init_http_client_from_connection(read_superlink_connection(CONNECTION))


def _nodes(client: Any) -> list[RegisteredNode]:
    from flwr.proto.control_pb2 import ListNodesRequest

    found = client.ListNodes(ListNodesRequest()).nodes_info
    return [RegisteredNode(str(node.node_id), node.name, node.status, _open_ssh(node.public_key)) for node in found]


def _open_ssh(pem: bytes) -> str | None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    if not pem:
        return None
    return load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _pem(line: str) -> bytes:
    """Convert a public key to the SuperLink's form.

    Raises:
        ValueError: The key is of a type that Flower does not support.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    key = load_ssh_public_key(line.encode())
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(f"got the key {line[:24]!r}...; one of ssh-keygen -t ecdsa would be right")  # noqa: TRY004 - no wrong type: a wrong key
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _parse_board_key(text: str) -> tuple[str, str]:
    """Parse ``NAME=KEY`` with a key in OpenSSH's form; its comment is dropped."""
    name, _, line = text.partition("=")
    key = " ".join(line.split()[:2])
    if not name or " " not in key:
        raise argparse.ArgumentTypeError(f"got {text!r}; NAME=KEY with a line of OpenSSH's would be right")
    return name, key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    kinds.add_parser("list", help="the boards as JSON").set_defaults(does=_list)
    register = kinds.add_parser("register", help="boards with their public keys, each name with that key alone")
    register.set_defaults(does=_register)
    register.add_argument("boards", nargs="*", type=_parse_board_key, metavar="BOARD=KEY")
    register.add_argument("--known", action="append", default=[], metavar="BOARD", help="in the inventory")
    register.add_argument("--check", action="store_true", help="only say what would be done")
    unregister = kinds.add_parser("unregister", help="a board that has lost its key")
    unregister.set_defaults(does=_unregister)
    unregister.add_argument("name", metavar="BOARD")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
