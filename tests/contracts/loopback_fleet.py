"""A fleet on loopback: Flower's own SuperLink and SuperNodes, every node a board at a desk; no TLS, no accounts."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contracts.desk import Desk, desk, gpu_desk
from contracts.processes import running

from experiments.backends.sim_backend import find_free_port


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where the SuperLink listens, the boards, and the processes of their SuperNodes by board name.

    ``links``: the process of the SuperLink. ``runtimes``: where each board's runner of ClientApps asks for work, by
    board name.
    """

    address: str
    desks: dict[str, Desk]
    nodes: dict[str, subprocess.Popen[bytes]]
    links: list[subprocess.Popen[bytes]] = field(default_factory=list)
    runtimes: dict[str, str] = field(default_factory=dict)


@contextmanager
def loopback_fleet(
    kinds: Sequence[str], folder: Path, isolation: str = "subprocess", names: Sequence[str] = ()
) -> Iterator[Fleet]:
    """One board of each kind, called board-1, board-2 ... or by ``names``, with a SuperNode each.

    With the isolation "process" their runners of ClientApps are the caller's, as on real boards.
    """
    with ExitStack() as stack:
        port = find_free_port()
        options = ["--insecure", "--host", "127.0.0.1", "--port", str(port), "--database", str(folder / "state.db")]
        link = ["flower-superlink", *options, "--disable-runtime-dependency-installation"]
        links = [stack.enter_context(flower(link, folder / "superlink", "Uvicorn running on"))]
        desks, nodes, runtimes = {}, {}, {}
        for i, kind in enumerate(kinds, start=1):
            name = names[i - 1] if names else f"board-{i}"
            place = folder / name
            place.mkdir()
            changes: dict[str, str] = {}
            if kind == "gpu-workstation":
                desks[name], changes = stack.enter_context(gpu_desk(place, name))
            else:
                desks[name] = stack.enter_context(desk(kind, place, board=name))
            settings = place / "node.yaml"
            settings.write_text(json.dumps(desks[name].settings.model_dump(mode="json")), encoding="utf-8")
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
            own_port = str(find_free_port())
            runtimes[name] = f"127.0.0.1:{own_port}"
            node += ["--port", own_port, "--isolation", isolation, "--node-config", f'settings="{settings}"']
            nodes[name] = stack.enter_context(flower(node, place / "node", "SuperNode", changes))
        yield Fleet(f"127.0.0.1:{port}", desks, nodes, links, runtimes)


@contextmanager
def flower(
    command: Sequence[str], home: Path, up: str, changes: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's programs with its helpers, once its log says that it is ``up``; all ended with the block."""
    with running(command, home, lambda log: up in log, changes) as (process, log):
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield process
