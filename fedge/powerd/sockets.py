"""The daemon's socket file, never taken from a live daemon, and which users at its other end may send requests."""

import fcntl
import grp
import os
import pwd
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

CREDENTIALS = struct.Struct("iII")
REMEMBERED_S = 5.0
"""Seconds for which a group lookup is cached: short enough for a newly added group, long enough for a burst of
requests.
"""
MOST_REMEMBERED = 1024


class Peer(NamedTuple):
    """The process that connected, as the kernel recorded it; ``gid`` is its primary group only."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the peer's credentials from the kernel (``SO_PEERCRED``); raises ``OSError``."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return Peer(*CREDENTIALS.unpack(raw))


def user_group_ids(uid: int) -> List[int]:
    """Return all groups of a user.

    Raises:
        KeyError: The uid is unknown on this machine.
    """
    user = pwd.getpwuid(uid)
    return os.getgrouplist(user.pw_name, user.pw_gid)


def group_id(name: str) -> Optional[int]:
    """Return the id of a group; None if this machine has no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


class AccessGate:
    """Admits root, the daemon's own user, and the members of one group."""

    def __init__(
        self,
        group: str,
        gid: Optional[int],
        own_uid: int,
        groups: Callable[[int], List[int]] = user_group_ids,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._gid, self._own_uid = group, gid, own_uid
        self._groups, self._clock = groups, clock
        self._known: Dict[int, Tuple[float, Optional[str]]] = {}

    def denial_reason(self, peer: Peer) -> Optional[str]:
        """Return why this peer is refused and what to do; None if it is admitted."""
        if peer.uid in (0, self._own_uid):
            return None
        now_s = self._clock()
        at_s, answer = self._known.get(peer.uid, (-REMEMBERED_S, None))
        if now_s - at_s < REMEMBERED_S:
            return answer
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        answer = self._find_denial_reason(peer.uid)
        self._known[peer.uid] = (now_s, answer)
        return answer

    def _find_denial_reason(self, uid: int) -> Optional[str]:
        try:
            groups = self._groups(uid)
        except KeyError:
            return f"uid {uid} is no user of this machine; ask as a user who is in group {self._group}"
        if self._gid is not None and self._gid in groups:
            return None
        return f"uid {uid} is not in group {self._group}; on the board: sudo usermod -aG {self._group} USER"


LONGEST_PATH = 107
"""Bytes of a unix socket's path; the kernel's own limit (unix(7))."""
FOLDER_MODE, PRIVATE_MODE = 0o755, 0o700
BACKLOG = 128
ANSWER_S = 2.0


class CannotStart(Exception):
    """The daemon cannot start; the text is one line that says why and what to do."""


def make_folder(folder: Path, mode: int) -> None:
    """Create a folder, or check that no other user can write to an existing one.

    Raises:
        CannotStart: The folder cannot be created or is writable by others.
    """
    try:
        folder.mkdir(mode=mode, parents=True)
        folder.chmod(mode)  # whatever the umask was
    except FileExistsError:
        pass
    except OSError as error:
        raise CannotStart(f"{folder} cannot be made: {error.strerror}; run the daemon as root") from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CannotStart(f"{folder} is no folder; take it away")
    sticky = mode == FOLDER_MODE and found.st_mode & stat.S_ISVTX  # /tmp: nobody can replace another's socket
    if found.st_uid not in (0, os.geteuid()) or (found.st_mode & 0o022 and not sticky):
        right = f"chown root {folder} and chmod {mode:o} {folder}"
        text = f"{folder} belongs to uid {found.st_uid} with rights {stat.S_IMODE(found.st_mode):o}"
        raise CannotStart(f"{text}, so others could write into it; {right}")


def lock_folder(folder: Path) -> int:
    """Lock the folder for this process until it ends.

    Returns:
        The file descriptor that holds the lock.

    Raises:
        CannotStart: Another process holds the lock.
    """
    handle = os.open(str(folder / "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise CannotStart(f"another daemon uses {folder}; stop it first: systemctl stop fedge-powerd") from error
    return handle


def listen_at(path: Path, gid: Optional[int]) -> socket.socket:
    """Create a listening socket with mode 0660; a stale one is replaced.

    Group ``gid`` owns it; None: the process's own group.

    Raises:
        CannotStart: The path is too long, in use or not writable.
    """
    if len(os.fsencode(str(path))) > LONGEST_PATH:
        raise CannotStart(f"{path} is longer than {LONGEST_PATH} bytes; choose a shorter socket path")
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
        if gid is not None:
            os.chown(str(path), -1, gid)
    except OSError as error:
        listener.close()
        raise CannotStart(f"{path} cannot be made: {error.strerror}; run the daemon as root") from error
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _remove_stale_socket(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotStart(f"{path} is there and is no socket; take it away, or choose another socket path")
    if _has_live_daemon(path):
        raise CannotStart(f"a daemon answers at {path}; stop it first: systemctl stop fedge-powerd")
    path.unlink()


def remove_socket(path: Path) -> None:
    """Remove the socket if it still exists."""
    try:
        path.unlink()
    except FileNotFoundError:
        return


def _has_live_daemon(path: Path) -> bool:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(ANSWER_S)
    try:
        caller.connect(str(path))
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # busy is alive
    finally:
        caller.close()
    return True
