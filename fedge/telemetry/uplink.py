"""Connection from a board to its server: HTTPS with the board's own certificate, kept open between messages."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Literal, Protocol
from urllib.parse import urlsplit

from fedge.devices.board_check import FAILED, PASSED, SKIPPED, BoardCheckFinding
from fedge.devices.local_board import TelemetrySettings
from fedge.telemetry.live_records import BoardProgress, encode_batch
from fedge.telemetry.outbox import Outbox

TIMEOUT_S = 10.0
"""Timeout of connecting and of each reply, in seconds."""
MAX_ANSWER_BYTES = 4096
Delivery = Literal["taken", "refused", "again"]
"""Outcome of a message; ``refused``: the server will never accept it."""
REFUSED_STATUSES = (400, 413, 422)

logger = logging.getLogger(__name__)


class Uplink(Protocol):
    """Sends messages to the server."""

    def send(self, message: bytes) -> Delivery: ...

    def close(self) -> None: ...


def classify_status(status: int) -> Delivery:
    """Classify an HTTP status; anything that is not clearly final may be corrected on the server and is tried again."""
    if status == http.client.OK:
        return "taken"
    return "refused" if status in REFUSED_STATUSES else "again"


class HttpsUplink:
    """An ``Uplink`` over ``http.client``; certificates are read anew for every connection, since they are renewed."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._connection: http.client.HTTPSConnection | None = None
        self._trouble = ""
        """The last problem, so that it is logged once."""

    def send(self, message: bytes) -> Delivery:
        """Send a message and return its outcome; a failed connection means ``again``."""
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
        """Close the connection; the next message opens another one."""
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
        self._connection = open_connection(self._settings)
        return self._request_status(self._connection, message)

    def _request_status(self, connection: http.client.HTTPSConnection, message: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": "fedge-telemetry"}
        connection.request("POST", telemetry_path(self._settings), body=message, headers=headers)
        answer = connection.getresponse()
        answer.read(MAX_ANSWER_BYTES)
        if not answer.isclosed():  # more than any answer of ours: the rest is not waited for
            self.close()
        return answer.status

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            logger.warning("%s; what is seen meanwhile is kept", trouble)
        if not trouble and self._trouble:
            logger.info("%s is reached again", self._settings.url)
        self._trouble = trouble


def open_connection(settings: TelemetrySettings) -> http.client.HTTPSConnection:
    """Return a connection to the server, which is made with the first request.

    Raises:
        OSError: A file cannot be read.
        ValueError: The key is encrypted.
    """
    url, context = urlsplit(settings.url), build_tls_context(settings)
    port = url.port or http.client.HTTPS_PORT
    return http.client.HTTPSConnection(url.hostname or "", port, timeout=TIMEOUT_S, context=context)


def telemetry_path(settings: TelemetrySettings) -> str:
    """Return the path of the server's address."""
    return urlsplit(settings.url).path or "/telemetry"


def build_tls_context(settings: TelemetrySettings) -> ssl.SSLContext:
    """Return a TLS 1.2+ context with host name check, one trusted CA and the board's own certificate.

    Raises:
        OSError: A file cannot be read.
        ValueError: The key is encrypted.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and asks for a certificate by itself
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=settings.ca)
    context.load_cert_chain(settings.certificate, settings.key, password=_refuse_password)
    return context


def _refuse_password() -> str:
    """Refuse an encrypted key; OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted: a service has nobody to ask for the password")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
JITTER = 0.5
"""A pause is drawn from this share of it up to all of it, so that a fleet does not reconnect all at once."""
BACKLOG_PERIOD_S = 0.25
"""Seconds between two messages of a backlog: at two minutes of samples each, a day is sent in three minutes."""
IDLE_PERIOD_S = 1.0
"""Seconds between progress reports of a board without a sensor."""


def retry_pause_s(failures: int, random: float) -> float:
    """Return the seconds until the next attempt: exponential back-off with jitter.

    ``failures`` are consecutive, at least 1; ``random`` is from 0 to 1.
    """
    whole_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
    return max(FIRST_PAUSE_S, whole_s * (JITTER + (1 - JITTER) * random))


class TelemetrySender:
    """Sends batches until it is stopped; ``run`` is the work of a thread.

    ``progress`` returns the board's current progress, which is added to every message.
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
        """Wake the sender because there is something new to send."""
        self._more.set()

    def stop(self) -> None:
        """Stop after the message in progress."""
        self._stop.set()
        self._more.set()

    def run(self) -> None:
        """Send batches until ``stop``."""
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
        """Send one message; return False if it must be sent again."""
        number, batch = self._outbox.next_batch(self._wall_s())
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


# Measurement of the link: messages of one size to and from the server -------------------------------------------------


LINK_MESSAGE_BYTES = 10**6
"""Size of a message; the fleet's proxy lets 1 MiB through."""
LINK_MESSAGE_TYPE = "application/octet-stream"
"""Content type by which the server tells such a message from telemetry."""
HEADERS = {"Content-Type": LINK_MESSAGE_TYPE, "User-Agent": "fedge-board-check"}
OTHER_VERSION_STATUSES = (200, 400, 404, 405, 413, 422)
"""Answers of a server that does not know such messages: 200 with too few bytes, or a refusal of the message itself."""
MIN_S, MAX_MESSAGES = 1.0, 20
"""A direction is measured for this long, or with so many messages. The first is not counted: TCP starts slowly."""


class _RefusedMessage(Exception):
    """An answer that is no such message.

    Attributes:
        status: Its HTTP status; ``http.client.OK`` if it was too short.
    """

    def __init__(self, status: int, took_s: float) -> None:
        super().__init__(status)
        self.status, self.took_s = status, took_s


def check_link(settings: TelemetrySettings | None) -> BoardCheckFinding:
    """Measure the link to the server of a board's settings."""
    if settings is None:
        missing = "no server: `telemetry` is missing in the board's settings"
        right = f"{missing}; `fedge fleet up` enters it (docs/explanation/live.md)"
        return BoardCheckFinding("link", SKIPPED, right)
    try:
        connection = open_connection(settings)
    except (OSError, ValueError) as error:
        right = "files that this account can read, the key without a password; `fedge fleet up` renews them"
        files = f"{settings.ca}, {settings.certificate} and {settings.key}"
        return BoardCheckFinding("link", FAILED, f"{files} cannot be used ({error}); {right}")
    try:
        with closing(connection):
            down_mbps, up_mbps = measure_link(connection, telemetry_path(settings))
    except _RefusedMessage as error:
        result, meaning = _explain_refusal(error)
        return BoardCheckFinding("link", result, f"{settings.url} answered with status {error.status}: {meaning}")
    except (OSError, http.client.HTTPException) as error:
        right = "see that `fedge board --serve` runs on the server, and its proxy"
        if isinstance(error, TimeoutError):
            right += f", and that the link carries 1 MB in {TIMEOUT_S:g} s"
        return BoardCheckFinding("link", FAILED, f"{settings.url} cannot be reached ({error}); {right}")
    known = f"link: {{down_mbps: {down_mbps:.3g}, up_mbps: {up_mbps:.3g}}}"
    return BoardCheckFinding("link", PASSED, f"{known} in a fleet entry emulates it (measured, messages of 1 MB)")


def _explain_refusal(error: _RefusedMessage) -> tuple[str, str]:
    """Return the result of a check whose message was refused, with what it means and what mends it."""
    if error.status == http.client.FORBIDDEN:
        return FAILED, "not a certificate of the fleet's boards; `fedge fleet up` renews it"
    if error.status == http.client.REQUEST_TIMEOUT:
        rate_mbps = _to_mbps(1, error.took_s)
        return FAILED, f"the link is too slow, under {rate_mbps:.2g} Mbit/s: a message of 1 MB did not come in time"
    if error.status >= http.client.INTERNAL_SERVER_ERROR:
        return FAILED, "the proxy runs, but not what is behind it; see that `fedge board --serve` runs on the server"
    if error.status in OTHER_VERSION_STATUSES:
        return SKIPPED, "a server of another version; `fedge fleet up` renews it"
    return FAILED, "not the answer of a fleet's server; see `telemetry.url` in the board's settings"


def measure_link(
    connection: http.client.HTTPSConnection, path: str, now_s: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Return the rates of the link down and up in Mbit/s, each with one round trip per message.

    Raises:
        OSError: If the server cannot be reached.
    """
    content = os.urandom(LINK_MESSAGE_BYTES)

    def transfer(method: str, body: bytes | None, least_bytes: int) -> None:
        start_s = now_s()
        connection.request(method, path, body=body, headers=HEADERS)
        answer = connection.getresponse()
        received = answer.read(LINK_MESSAGE_BYTES)
        if answer.status != http.client.OK or len(received) < least_bytes:
            raise _RefusedMessage(answer.status, now_s() - start_s)

    return (
        _measure_rate(lambda: transfer("GET", None, LINK_MESSAGE_BYTES), now_s),
        _measure_rate(lambda: transfer("POST", content, 0), now_s),
    )


def _measure_rate(transfer: Callable[[], None], now_s: Callable[[], float]) -> float:
    transfer()
    start_s, took_s, count = now_s(), 0.0, 0
    while count < MAX_MESSAGES and took_s < MIN_S:
        transfer()
        count, took_s = count + 1, now_s() - start_s
    return _to_mbps(count, took_s)


def _to_mbps(messages: int, took_s: float) -> float:
    return 8e-6 * LINK_MESSAGE_BYTES * messages / took_s
