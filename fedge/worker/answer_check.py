"""Checks that a trainer still answers: a process may live and yet serve nobody, for example after a deadlock."""

import json
import socket
import time
from typing import Callable, Optional

from fedge.worker import MAGIC, PREFIX, PROTOCOL

CHECK_EVERY_S = 30.0
"""Seconds between two questions. Default; more often would wake an idle board for nothing."""
SILENCE_LIMIT_S = 300.0
"""Seconds without an answer after which the trainer is killed. Default; importing torch from a slow card, during which
no thread of the trainer answers, takes up to a minute.
"""


class AnswerCheck:
    """Asks one trainer for its status every ``CHECK_EVERY_S`` seconds, without ever waiting for it."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._link: Optional[socket.socket] = None
        self._since_s = clock()
        self._waiting = False

    def silence_s(self) -> float:
        """Return for how many seconds a question has been unanswered; 0 if none is."""
        now_s = self._clock()
        if self._waiting and self._link is not None and _has_answer(self._link):
            self.close()
            self._since_s = now_s
        elif not self._waiting and now_s - self._since_s >= CHECK_EVERY_S:
            self._waiting, self._since_s = True, now_s
        if self._waiting and self._link is None:
            try:
                self._link = _ask_status(self._path)
            except OSError:  # the socket is gone, which no other trainer would mend
                self._waiting, self._since_s = False, now_s
        return now_s - self._since_s if self._waiting else 0.0

    def close(self) -> None:
        """End the question."""
        self._waiting = False
        if self._link is not None:
            self._link.close()
            self._link = None


def _ask_status(path: str) -> Optional[socket.socket]:
    """Ask for the status and return the connection; None if no more connections can wait at the socket.

    Raises:
        OSError: There is no such socket.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(False)
    text = json.dumps({"v": PROTOCOL, "verb": "status"}).encode("ascii")
    try:
        link.connect(path)
        link.send(PREFIX.pack(MAGIC, len(text), 0) + text)
    except OSError as error:
        link.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return link


def _has_answer(link: socket.socket) -> bool:
    """Return whether anything came back; a refusal or a closed connection is an answer too."""
    try:
        link.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
