"""The way from a board to its server: https with the board's own certificate, over one connection that is kept open."""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from urllib.parse import urlsplit

from fedge.devices.node_settings import TelemetrySettings
from fedge.telemetry.board_messages import encode_batch
from fedge.telemetry.live_records import BoardProgress
from fedge.telemetry.outbox import Outbox

TIMEOUT_S = 10.0
"""For connecting, and for each answer. Chosen by us."""
MAX_ANSWER_BYTES = 4096
HTTPS = 443
Delivery = Literal["taken", "refused", "again"]
"""``refused``: the server will never take this message, however often it is sent."""
REFUSED_STATUSES = (400, 413, 422)

logger = logging.getLogger(__name__)


class Uplink(Protocol):
    """Brings one message to the server."""

    def send(self, message: bytes) -> Delivery: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server listens for telemetry."""

    host: str
    port: int
    path: str


def parse_address(url: str) -> ServerAddress:
    """The parts of an https address."""
    parts = urlsplit(url)
    return ServerAddress(parts.hostname or "", parts.port or HTTPS, parts.path or "/telemetry")


def classify_status(status: int) -> Delivery:
    """What the server's answer means for the message: anything that is not clearly final may be mended over there."""
    if status == http.client.OK:
        return "taken"
    return "refused" if status in REFUSED_STATUSES else "again"


class HttpsUplink:
    """A ``Uplink`` by ``http.client``; certificates are read anew for every connection, since they are renewed."""

    def __init__(self, settings: TelemetrySettings, limit_s: float = TIMEOUT_S) -> None:
        self._settings, self._limit_s = settings, limit_s
        self._address = parse_address(settings.url)
        self._connection: http.client.HTTPSConnection | None = None
        self._trouble = ""
        """What was wrong last, so that it is told once."""

    def send(self, message: bytes) -> Delivery:
        """What became of the message; whatever goes wrong on the way means once more."""
        try:
            status = self._post_message(message)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            self._log_trouble(f"{self._settings.url} cannot be reached: {_describe_error(error)}")
            return "again"
        outcome = classify_status(status)
        self._log_trouble("" if outcome == "taken" else f"{self._settings.url} answered with status {status}")
        return outcome

    def close(self) -> None:
        """End the connection; the next message makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _post_message(self, message: bytes) -> int:
        if self._connection is not None:
            try:
                return self._request_status(self._connection, message)
            except (OSError, http.client.HTTPException):
                self.close()  # a server may end a connection that is idle: once more over a new one
        self._connection = self._open_connection()
        return self._request_status(self._connection, message)

    def _request_status(self, connection: http.client.HTTPSConnection, message: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": "fedge-telemetry"}
        connection.request("POST", self._address.path, body=message, headers=headers)
        answer = connection.getresponse()
        answer.read(MAX_ANSWER_BYTES)
        if not answer.isclosed():  # more than any answer of ours: the rest is not waited for
            self.close()
        return answer.status

    def _open_connection(self) -> http.client.HTTPSConnection:
        context = build_tls_context(self._settings)
        return http.client.HTTPSConnection(
            self._address.host, self._address.port, timeout=self._limit_s, context=context
        )

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            logger.warning("%s; what is seen meanwhile is kept", trouble)
        if not trouble and self._trouble:
            logger.info("%s is reached again", self._settings.url)
        self._trouble = trouble


def build_tls_context(settings: TelemetrySettings) -> ssl.SSLContext:
    """TLS 1.2 or later, the server's name checked, one CA believed, the board's own certificate; raises ``OSError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and asks for a certificate by itself
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=settings.ca)
    context.load_cert_chain(settings.certificate, settings.key, password=_refuse_password)
    return context


def _refuse_password() -> str:
    """A key that is encrypted is an error; OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted: a service has nobody to ask for the password")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
JITTER = 0.5
"""A pause is from this share of it up to all of it, so that a fleet does not come back in one moment. Chosen by us."""
BACKLOG_PERIOD_S = 0.25
"""Between two messages of a backlog: two minutes' worth each, so a day takes three minutes. Chosen by us."""
IDLE_PERIOD_S = 1.0
"""A board without a sensor says so often what it does."""


def retry_pause_s(failures: int, random: float) -> float:
    """Seconds until the next try after so many failures in a row; ``random`` is from 0 to 1."""
    whole_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
    return max(FIRST_PAUSE_S, whole_s * (JITTER + (1 - JITTER) * random))


class TelemetrySender:
    """Sends until it is told to stop; ``run`` is a thread's work.

    ``progress`` gives what the board does now, ``wait`` waits for so many seconds or until ``stop`` (then: True).
    """

    def __init__(
        self,
        outbox: Outbox,
        link: Uplink,
        progress: Callable[[], BoardProgress],
        wall_s: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._outbox, self._link, self._progress = outbox, link, progress
        self._wall_s, self._random = wall_s, random
        self._stop, self._more = threading.Event(), threading.Event()

    def notify(self) -> None:
        """There is something new to send."""
        self._more.set()

    def stop(self) -> None:
        """End; a message under way is still waited for."""
        self._stop.set()
        self._more.set()

    def run(self) -> None:
        """Send what there is, again and again."""
        failures = 0
        while not self._stop.is_set():
            failures = 0 if self.send_oldest() else failures + 1
            if failures:
                self._stop.wait(retry_pause_s(failures, self._random()))
            elif self._outbox.has_backlog:
                self._stop.wait(BACKLOG_PERIOD_S)
            else:
                self._more.wait(IDLE_PERIOD_S)
                self._more.clear()
        self._link.close()

    def send_oldest(self) -> bool:
        """Send one message; False when it has to be sent again."""
        found = self._outbox.next_batch(self._wall_s(), anyway=True)
        assert found is not None
        number, batch = found
        try:
            message = encode_batch(replace(batch, progress=self._progress(), lost=self._outbox.lost_stretches))
            outcome = self._link.send(message)
        except Exception:  # the thread's edge: whatever it is, it must not end the sending
            logger.exception("a message could not be sent")
            outcome = "again"
        if outcome == "again":
            return False
        if outcome == "refused":
            logger.warning("the server refused %d s of samples: they are lost", len(batch.trace))
            self._outbox.count_lost(len(batch.trace))
        self._outbox.mark_done(number)
        return True
