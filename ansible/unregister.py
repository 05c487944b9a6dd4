"""Takes a board's key away from the SuperLink; run on the server by the SuperLink's Python and as its user."""
# ruff: noqa: INP001, T201 - a program beside the playbooks

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any


def registered(nodes: Iterable[Any], name: str) -> list[int]:
    """The ids of the nodes called ``name`` that may still come in."""
    return [node.node_id for node in nodes if node.name == name and node.status != "unregistered"]


def main() -> int:
    """Unregister the nodes of a name, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the board's")
    asked = parser.parse_args()

    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

    client = init_http_client_from_connection(read_superlink_connection("fleet"))
    try:
        found = client.ListNodes(ListNodesRequest()).nodes_info
        for node_id in registered(found, asked.name):
            client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))
            print(f"unregistered {node_id}")
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
