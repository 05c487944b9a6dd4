"""The user at the other end of a connection, and whether that user may send requests."""

import grp
import os
import pwd
import socket
import struct
import time
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
