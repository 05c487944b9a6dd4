"""Life cycle of the daemon: read its file, recover from a crash, listen, serve, and restore everything."""

import argparse
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Callable, List, Optional

from fedge.powerd import config as configuration
from fedge.powerd import sockets
from fedge.powerd.board_control import BoardControl
from fedge.powerd.config import BadConfig, Config
from fedge.powerd.line_server import LineServer
from fedge.powerd.machine import BOOT_ID, Machine, TimedMachine
from fedge.powerd.mode_records import PowerdRefusal
from fedge.powerd.state_keeper import StateKeeper
from fedge.powerd.verb_handlers import Daemon

logger = logging.getLogger(__name__)


def main(argv: Optional[List[str]] = None, machine_at: Callable[[str], Machine] = TimedMachine) -> int:
    """Run the daemon.

    Returns:
        The exit code: 0 after a clean end, 1 if it cannot run here or could not restore everything, 2 for an invalid
        configuration file.
    """
    parser = argparse.ArgumentParser(prog="fedge-powerd", description="Sets a Jetson board's power modes, safely.")
    parser.add_argument("--config", help=f"the daemon's file (default {configuration.CONFIG})")
    parser.add_argument("--root", default="/", help="a folder that stands for / of the board (default /)")
    parser.add_argument("--socket", help="where to listen (default: what the file says)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    machine = machine_at(arguments.root)
    try:
        path = Path(arguments.config) if arguments.config else machine.path(configuration.CONFIG)
        config = configuration.load(path, needed=arguments.config is not None)
        return _run(machine, config, Path(arguments.socket) if arguments.socket else machine.path(config.socket))
    except (BadConfig, PowerdRefusal, sockets.CannotStart, OSError) as error:
        sys.stderr.write(f"fedge-powerd: {error}\n")
        return 2 if isinstance(error, BadConfig) else 1


def _run(machine: Machine, config: Config, path: Path) -> int:
    gid, state = _find_group_id(machine, config), machine.path(config.state)
    board = BoardControl(machine, config)
    sockets.make_folder(state, sockets.PRIVATE_MODE)
    sockets.make_folder(path.parent, sockets.FOLDER_MODE)
    lock = sockets.lock_folder(state)
    try:
        daemon = Daemon(board, StateKeeper(board, state, _read_boot_id(machine)), config)
        gate, wakeup = sockets.AccessGate(config.group, gid, os.geteuid()), _Wakeup()
        listener = sockets.listen_at(path, gid)
        try:
            daemon.start()  # clients that connect meanwhile wait in the socket's backlog

            def tick() -> None:
                daemon.tick()
                notify_systemd("WATCHDOG=1")

            server = LineServer(listener, daemon.answer, gate.denial_reason, tick)
            logger.info("fedge-powerd listens at %s", path)
            notify_systemd("READY=1")
            server.serve(lambda: wakeup.ended, wakeup.reader)
        finally:
            whole = daemon.end()
            listener.close()
            sockets.remove_socket(path)
        return 0 if whole else 1
    finally:
        os.close(lock)


def _find_group_id(machine: Machine, config: Config) -> Optional[int]:
    """Return the group's id; None if an ordinary user runs the daemon below a recorded root."""
    if machine.root != "/" and os.geteuid() != 0:
        return None
    gid = sockets.group_id(config.group)
    if gid is None:
        raise BadConfig(f"no group {config.group} on this machine; make it: sudo groupadd --system {config.group}")
    return gid


def _read_boot_id(machine: Machine) -> str:
    try:
        return machine.read(BOOT_ID)
    except OSError:
        logger.warning("no %s: after a crash only the nvpmodel mode can be put back", BOOT_ID)
        return ""


class _Wakeup:
    """SIGTERM and SIGINT as a flag and a byte that wakes the server; a change in progress is completed first."""

    def __init__(self) -> None:
        self.ended = False
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno())
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._end)

    def _end(self, number: int, frame: object) -> None:
        self.ended = True


def notify_systemd(state: str) -> None:
    """Notify systemd if it asked for it; the address may be an abstract one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        try:
            link.sendto(state.encode("ascii"), "\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            logger.warning("systemd could not be told %s: %s", state, error)
