"""Measurement of a board's link: messages of one size to and from the server that takes its telemetry."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from contextlib import closing

from fedge.devices.board_check import FAILED, PASSED, SKIPPED, BoardCheckFinding
from fedge.devices.node_settings import TelemetrySettings
from fedge.telemetry.uplink import TIMEOUT_S, open_connection, telemetry_path

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
        took_s: Seconds from the request to the answer.
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

    Args:
        connection: The connection to the server.
        path: Path of the server's address.
        now_s: Returns the time in seconds.

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
