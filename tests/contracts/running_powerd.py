"""A real daemon in a process of its own, below a recorded board's root."""

import contextlib
import grp
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contracts.jetsons import build, contents
from contracts.jetsons.kernel import KernelMachine

from fedge.powerd import state_keeper
from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import Config
from fedge.powerd.powerd_client import PowerdClient, PowerdError
from fedge.powerd.state_keeper import StateKeeper
from fedge.powerd.verb_handlers import Daemon

ROOT = Path(__file__).resolve().parents[2]
BOOT = "6f1c0a52-1111-4222-8333-000000000001"
LAUNCHER = """
import os, pathlib, signal, sys
from contracts.jetsons.kernel import KernelMachine
from fedge.powerd.daemon import main

die_at_write = int(os.environ["DIE_AT_WRITE"]) if "DIE_AT_WRITE" in os.environ else None
quick = os.environ.get("QUICK") == "1"
left = [int(os.environ.get("DIE_AT_SAVING", "1000000"))]

def deadly(real):
    def call(*arguments, **named):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return real(*arguments, **named)
    return call

os.fsync = deadly(os.fsync)
pathlib.Path.replace = deadly(pathlib.Path.replace)
pathlib.Path.unlink = deadly(pathlib.Path.unlink)
sys.exit(main(sys.argv[1:], lambda root: KernelMachine(root, die_at_write, quick)))
"""
"""The daemon on a kernel-like machine; it can be told to kill itself at a write, or at a step of saving the state.

``quick`` 1 does nvpmodel's work in the daemon's own process.
"""
LIMIT_S = 20.0


def state_of(root: Path):
    """The board's files, without what belongs to the daemon itself."""
    own = ("/var/lib/fedge-powerd", "/run/fedge")
    return {path: content for path, content in contents(root).items() if not path.startswith(own)}


def board_root(name: str, folder: Path, **config) -> Path:
    """A board's root with a boot id and a file for the daemon, whose group is one that this machine has."""
    root = Path(str(build(name, folder)))
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text(BOOT + "\n")
    file = root / "etc/fedge/powerd.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(dict({"group": grp.getgrgid(os.getgid()).gr_name}, **config)))
    return root


def receive_all(link: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        for chunk in iter(lambda: link.recv(65536), b""):
            received += chunk
    return received


class Running:
    """The process and its socket, whose path is short because the kernel wants it so."""

    def __init__(self, root: Path, *, program=("-c", LAUNCHER), **told) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fp")
        self.socket = str(Path(self._folder.name) / "s")
        self.root = root
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        environment.update({name.upper(): str(number) for name, number in told.items()})
        self._log = (Path(self._folder.name) / "log").open("w+b")
        command = [sys.executable, *program, "--root", str(root), "--socket", self.socket]
        self.process = subprocess.Popen(command, env=environment, stderr=self._log)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        self._folder.cleanup()

    def wait_until_up(self) -> PowerdClient:
        """A client of a daemon that answers; fails when there is none in time."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s and self.process.poll() is None:
            client = PowerdClient(self.socket, LIMIT_S)
            try:
                client.ask("are you there")
            except PowerdError as error:
                if error.kind == "unknown-verb":
                    return client
                client.close()
                time.sleep(0.02)
        raise AssertionError(f"the daemon is not up: {self.log()}")

    def end(self) -> int:
        """SIGTERM and the exit code."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def log(self) -> str:
        """All that the daemon wrote so far."""
        self._log.seek(0)
        return self._log.read().decode()


def lowest(root):
    """The change of every knob to the lowest value that is allowed, and then all back."""
    allowed = BoardControl(KernelMachine(str(root)), Config()).allowed_tables()._asdict()
    mode = {knob: values[0] for knob, values in allowed.items() if values}

    def change(client: PowerdClient) -> None:
        client.set_mode(mode, lock_min=True)
        client.restore()

    return change


def made_up_for(root, before) -> None:
    """A next daemon sets again what was found, and owes nothing after that. It needs no process of its own: nothing
    kills it, and the one before it has left nothing but files.
    """
    folder = root / "var/lib/fedge-powerd"
    board = BoardControl(KernelMachine(str(root), quick=True), Config())
    daemon = Daemon(board, StateKeeper(board, folder, BOOT), Config())
    daemon.start()
    assert state_of(root) == before
    told = json.loads(daemon.answer(b'{"v":1,"verb":"get"}', 0).decode())
    assert (told["changed"], told["stopped"]) == (False, None)
    assert daemon.end() is True
    assert state_of(root) == before
    assert state_keeper.load_state(folder) is None
