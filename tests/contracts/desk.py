"""A whole board at a desk: a recorded root, the real power daemon on it, the real worker; ended by process id."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts import jetsons
from contracts.processes import wait_for

from fedge.devices.local_board import NodeSettings

ROOT = Path(__file__).resolve().parents[2]
DAEMON = Path(jetsons.__file__).with_name("daemon.py")
TICK_S = 0.2
"""How often the daemon looks at the board: oftener than a real one, so that tests wait less for it."""
OWN = "/var/lib/fedge-powerd"
"""The daemon's own folder below the root, which is no part of the board's state."""


@dataclass(frozen=True, slots=True)
class Desk:
    """A board's settings and the folder of its files."""

    settings: NodeSettings
    root: Path
    log: Path
    supervisor: int = 0
    """The process that holds the worker's socket."""

    @property
    def files(self) -> dict[str, bytes]:
        """The board's files as they are now, to compare before and after; without the daemon's own."""
        return {path: content for path, content in jetsons.contents(self.root).items() if not path.startswith(OWN)}

    @property
    def trainer(self) -> int:
        """The process that trains, which the supervisor starts again when it dies."""
        parents = {int(path.parent.name): _parent(path) for path in Path("/proc").glob("[0-9]*/stat")}
        return next(pid for pid, parent in parents.items() if parent == self.supervisor)


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return 0


@contextmanager
def desk(
    name: str, tmp_path: Path, board: str = "board-1", worker: bool = True, python: str = sys.executable
) -> Iterator[Desk]:
    """The board ``name`` of ``jetsons.BOARDS``, its daemon answering, with its worker unless that is not needed.

    ``python`` is the interpreter of the worker.
    """
    root = jetsons.build(name, tmp_path)
    settings = NodeSettings(
        board=board,
        power_socket=str(tmp_path / "p.sock"),
        worker_socket=str(tmp_path / "w.sock"),
        state_dir=tmp_path / "state",
        root=str(root),
        sample_hz=20,
    )
    config = tmp_path / "powerd.json"
    config.write_text(json.dumps(_config(jetsons.board(name))), encoding="utf-8")
    daemon = [str(DAEMON), "--root", str(root), "--config", str(config), "--socket", settings.power_socket]
    daemon += ["--tick-s", f"{TICK_S}"]
    log = tmp_path / "log"
    with listening([sys.executable, *daemon], settings.power_socket, log):
        if not worker:
            yield Desk(settings, root, log)
            return
        with listening(worker_command(settings, python), settings.worker_socket, log) as supervisor:
            yield Desk(settings, root, log, supervisor)


def worker_command(settings: NodeSettings, python: str = sys.executable) -> list[str]:
    """How a board's worker is started."""
    places = ["--socket", settings.worker_socket, "--data-root", str(settings.state_dir)]
    return [python, "-m", "fedge.worker", *places]


@contextmanager
def gpu_desk(tmp_path: Path, board: str) -> Iterator[tuple[Desk, dict[str, str]]]:
    """A machine with a card and its worker, and what a process must have in its environment to find the card."""
    settings = NodeSettings(
        board=board,
        device="gpu-workstation",
        power_socket=str(tmp_path / "none.sock"),
        worker_socket=str(tmp_path / "w.sock"),
        state_dir=tmp_path / "state",
        sample_hz=20,
    )
    library = tmp_path / "nvml"
    library.mkdir()
    lines = (
        "import sys",
        "from contracts.fake_nvml import FakeCard, FakeNvml",
        "sys.modules[__name__] = FakeNvml([FakeCard()])",
    )
    (library / "pynvml.py").write_text("\n".join(lines), encoding="utf-8")
    with listening(worker_command(settings), settings.worker_socket, tmp_path / "log") as supervisor:
        path = os.pathsep.join(map(str, (library, ROOT, ROOT / "tests")))
        yield Desk(settings, Path("/"), tmp_path / "log", supervisor), {"PYTHONPATH": path}


def note_idle(found: Desk) -> None:
    """Power at rest as measured before, so that the tests do not wait for it."""
    from fedge.devices.jetson_board import IdlePowerStore
    from fedge.devices.local_board import name_meter, open_local_board
    from fedge.modes import build_grid

    with open_local_board(found.settings.place) as here:
        spec, meter = here.board.spec, name_meter(here.sensor, found.settings.sensor)
        book = IdlePowerStore(found.settings.state_dir / "idle.json", meter)
        for mode in (spec.maxn, *[m for m in build_grid(spec) if m.cores == 2 and m.gpu_mhz == spec.gpu_mhz[0]]):
            book._watts[str(mode)] = 3.0
    book.record(spec.maxn, 3.5)


def _config(truth: jetsons.Board) -> dict[str, object]:
    """The daemon's file; a board without a table of memory clocks is told them, as an administrator would."""
    return {"state": OWN, "group": "root", "emc_table_hz": [] if truth.emc.bpmp else truth.emc_hz}


@contextmanager
def listening(command: Sequence[str], at: str, log: Path) -> Iterator[int]:
    """A program until the end of the block, once it listens at a socket's path; its process id."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=ROOT)
    try:
        wait_for(lambda: _listens(at) or process.poll() is not None, log)
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def _listens(at: str) -> bool:
    """A socket's file is there a moment before anybody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(at)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
