"""Measurement of a board's link: messages of one size to and from the server that takes its telemetry."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from contextlib import closing

from fedge.devices.board_check import FAILED, PASSED, SKIPPED, BoardCheckFinding
from fedge.devices.node_settings import TelemetrySettings
from fedge.telemetry.uplink import open_connection, telemetry_path

LINK_MESSAGE_BYTES = 10**6
"""Size of a message; the fleet's proxy lets 1 MiB through."""
LINK_MESSAGE_TYPE = "application/octet-stream"
"""Content type by which the server tells such a message from telemetry."""
MIN_S, MAX_MESSAGES = 1.0, 20
"""A direction is measured for this long, or with so many messages. The first is not counted: TCP starts slowly."""


class _OtherServer(Exception):
    """A server that does not answer such messages."""


def check_link(settings: TelemetrySettings | None) -> BoardCheckFinding:
    """Measure the link to the server of a board's settings."""
    if settings is None:
        right = "no server: `telemetry` is missing in the board's settings; `fedge fleet up` enters it (docs/live.md)"
        return BoardCheckFinding("link", SKIPPED, right)
    try:
        down_mbps, up_mbps = measure_link(settings)
    except _OtherServer as error:
        right = "a server of another version; `fedge fleet up` renews it"
        return BoardCheckFinding("link", SKIPPED, f"{settings.url} answered with status {error}: {right}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        right = "see that `fedge board --serve` runs on the server, and its proxy"
        return BoardCheckFinding("link", FAILED, f"{settings.url} cannot be reached ({error}); {right}")
    known = f"link: {{down_mbps: {down_mbps:.3g}, up_mbps: {up_mbps:.3g}}}"
    return BoardCheckFinding("link", PASSED, f"{known} in a fleet entry emulates it (measured, messages of 1 MB)")


def measure_link(settings: TelemetrySettings) -> tuple[float, float]:
    """Return the rates of the link down and up in Mbit/s, each with one round trip per message.

    Raises:
        OSError: If the server cannot be reached, or a file of the settings cannot be read.
        ValueError: If the key is encrypted.
    """
    path, content = telemetry_path(settings), os.urandom(LINK_MESSAGE_BYTES)
    headers = {"Content-Type": LINK_MESSAGE_TYPE, "User-Agent": "fedge-board-check"}
    with closing(open_connection(settings)) as connection:

        def receive() -> None:
            connection.request("GET", path, headers=headers)
            _read_answer(connection, LINK_MESSAGE_BYTES)

        def send() -> None:
            connection.request("POST", path, body=content, headers=headers)
            _read_answer(connection, 0)

        return _measure_rate(receive), _measure_rate(send)


def _read_answer(connection: http.client.HTTPSConnection, least_bytes: int) -> None:
    answer = connection.getresponse()
    content = answer.read(LINK_MESSAGE_BYTES)
    if answer.status != http.client.OK or len(content) < least_bytes:
        raise _OtherServer(answer.status)


def _measure_rate(transfer: Callable[[], None]) -> float:
    transfer()
    start_s, took_s, count = time.perf_counter(), 0.0, 0
    while count < MAX_MESSAGES and took_s < MIN_S:
        transfer()
        count, took_s = count + 1, time.perf_counter() - start_s
    return 8e-6 * LINK_MESSAGE_BYTES * count / took_s
