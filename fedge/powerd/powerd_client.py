"""Client of the daemon: one request, one reply, and error texts that say what to do."""

import contextlib
import json
import socket
from typing import Any, Dict, Optional

from fedge.powerd import PROTOCOL
from fedge.powerd.line_protocol import one_line

SOCKET = "/run/fedge/powerd.sock"
LONGEST_REPLY = 1 << 20
CHUNK = 65536
STATUS_HINT = "see systemctl status fedge-powerd on the board"


class PowerdError(Exception):
    """A refused or failed request.

    Attributes:
        kind: One of the wire's error kinds, or ``unreachable``.
    """

    def __init__(self, kind: str, text: str, got: Optional[Any] = None) -> None:
        super().__init__(text)
        self.kind, self.text, self.got = kind, text, got


class PowerdClient:
    """Client with one connection, opened on demand and reopened if the daemon closed it between two requests.

    All methods that send a request raise ``PowerdError``.
    """

    def __init__(self, socket_path: str = SOCKET, timeout_s: float = 30.0) -> None:
        self._path, self._timeout_s = socket_path, timeout_s
        self._link: Optional[socket.socket] = None

    def ask(self, verb: str, **fields: Any) -> Dict[str, Any]:
        """Send a request and return the reply's fields; ``fields`` that are None are not sent.

        Raises:
            PowerdError: The daemon refused the request or is unreachable.
        """
        sent = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps(dict(sent, v=PROTOCOL, verb=verb)).encode("ascii") + b"\n"
        reply = self._exchange(line)
        if reply.pop("ok", None) is True:
            return reply
        error = reply.get("error")
        if not isinstance(error, dict):
            self.close()
            raise PowerdError("unreachable", f"what answers at {self._path} is no fedge-powerd; {STATUS_HINT}")
        raise PowerdError(one_line(error.get("kind")), one_line(error.get("text")), error.get("got"))

    def describe(self) -> Dict[str, Any]:
        """Return the board's identity, knobs, presets and limits."""
        return self.ask("describe")

    def get(self) -> Dict[str, Any]:
        """Return the current mode, limits, lease and temperature."""
        return self.ask("get")

    def set_mode(self, mode: Dict[str, int], token: Optional[str] = None, lock_min: bool = False) -> Dict[str, Any]:
        """Set the knobs that ``mode`` names.

        ``mode`` has values of ``cores``, ``cpu_khz``, ``gpu_hz`` and ``emc_hz``, or some of them.

        Returns:
            The reply; its ``mode`` is as read back.
        """
        return self.ask("set", mode=mode, token=token, lock_min=lock_min or None)

    def set_preset(self, name: str, token: Optional[str] = None) -> Dict[str, Any]:
        """Set a stock mode of nvpmodel by name."""
        return self.ask("set", preset=name, token=token)

    def restore(self, token: Optional[str] = None) -> Dict[str, Any]:
        """Restore the state that the daemon found when it started."""
        return self.ask("restore", token=token)

    def hold(self, name: str, seconds: float, token: Optional[str] = None) -> Dict[str, Any]:
        """Begin a lease, renew it (with its token), or give it back (0 seconds)."""
        return self.ask("hold", name=name, seconds=seconds, token=token)

    def drop_caches(self, token: Optional[str] = None) -> None:
        """Drop the kernel's clean page cache; the caller must write out dirty pages first (``os.sync``)."""
        self.ask("drop-caches", token=token)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _exchange(self, line: bytes) -> Dict[str, Any]:
        """Send a request; send it again if a kept connection was closed as idle before anything was received."""
        kept = self._link is not None
        try:
            answer = self._send_once(line)
            if not answer and kept:
                self.close()
                answer = self._send_once(line)
        except OSError as error:
            self.close()
            raise self._unreachable_error(error) from error
        if not answer.endswith(b"\n"):
            self.close()
            raise PowerdError("unreachable", f"the daemon at {self._path} ended the connection; {STATUS_HINT}")
        try:
            found = json.loads(answer.decode("utf-8"))
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {}

    def _send_once(self, line: bytes) -> bytes:
        if self._link is None:
            self._link = self._connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.sendall(line)  # a daemon that turned us away has sent why before it closed
        return self._read_line(self._link)

    def _connect(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(self._timeout_s)
        try:
            link.connect(self._path)
        except OSError:
            link.close()
            raise
        return link

    @staticmethod
    def _read_line(link: socket.socket) -> bytes:
        received = bytearray()
        while not received.endswith(b"\n") and len(received) < LONGEST_REPLY:
            try:
                chunk = link.recv(CHUNK)
            except ConnectionResetError:
                break
            if not chunk:
                break
            received += chunk
        return bytes(received)

    def _unreachable_error(self, error: OSError) -> PowerdError:
        path = self._path
        if isinstance(error, PermissionError):
            text = f"no right to {path}; be in group fedge (sudo usermod -aG fedge $USER, then log in anew)"
        elif isinstance(error, FileNotFoundError):
            text = f"no socket {path}: fedge-powerd does not run, or listens elsewhere; {STATUS_HINT}"
        elif isinstance(error, ConnectionRefusedError):
            text = f"nobody answers at {path}: fedge-powerd does not run; {STATUS_HINT}"
        elif isinstance(error, socket.timeout):
            text = f"no answer from {path} within {self._timeout_s:g} s; {STATUS_HINT}"
        else:
            text = f"{path}: {error}; {STATUS_HINT}"
        return PowerdError("unreachable", text)
