"""The way from a board to its server: https with the board's own certificate, over one connection that is kept open."""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from fedge.node.settings import TelemetrySettings

LIMIT_S = 10.0
"""For connecting, and for each answer. Chosen by us."""
LONGEST_ANSWER = 4096
HTTPS = 443
Outcome = Literal["taken", "refused", "again"]
"""``refused``: the server will never take this message, however often it is sent."""
REFUSED = (400, 413, 422)

logger = logging.getLogger(__name__)


class Link(Protocol):
    """Brings one message to the server."""

    def post(self, message: bytes) -> Outcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens for telemetry."""

    host: str
    port: int
    path: str


def address_of(url: str) -> Address:
    """The parts of an https address."""
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or HTTPS, parts.path or "/telemetry")


def outcome_of(status: int) -> Outcome:
    """What the server's answer means for the message: anything that is not clearly final may be mended over there."""
    if status == http.client.OK:
        return "taken"
    return "refused" if status in REFUSED else "again"


class HttpsLink:
    """A ``Link`` by ``http.client``; certificates are read anew for every connection, since they are renewed."""

    def __init__(self, settings: TelemetrySettings, limit_s: float = LIMIT_S) -> None:
        self._settings, self._limit_s = settings, limit_s
        self._address = address_of(settings.url)
        self._connection: http.client.HTTPSConnection | None = None
        self._trouble = ""
        """What was wrong last, so that it is told once."""

    def post(self, message: bytes) -> Outcome:
        """What became of the message; whatever goes wrong on the way means once more."""
        try:
            status = self._posted(message)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            self._tell(f"{self._settings.url} cannot be reached: {_words(error)}")
            return "again"
        outcome = outcome_of(status)
        self._tell("" if outcome == "taken" else f"{self._settings.url} answered with status {status}")
        return outcome

    def close(self) -> None:
        """End the connection; the next message makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _posted(self, message: bytes) -> int:
        if self._connection is not None:
            try:
                return self._asked(self._connection, message)
            except (OSError, http.client.HTTPException):
                self.close()  # a server may end a connection that is idle: once more over a new one
        self._connection = self._connected()
        return self._asked(self._connection, message)

    def _asked(self, connection: http.client.HTTPSConnection, message: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": "fedge-telemetry"}
        connection.request("POST", self._address.path, body=message, headers=headers)
        answer = connection.getresponse()
        answer.read(LONGEST_ANSWER)
        if not answer.isclosed():  # more than any answer of ours: the rest is not waited for
            self.close()
        return answer.status

    def _connected(self) -> http.client.HTTPSConnection:
        context = context_of(self._settings)
        return http.client.HTTPSConnection(
            self._address.host, self._address.port, timeout=self._limit_s, context=context
        )

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            logger.warning("%s; what is seen meanwhile is kept", trouble)
        if not trouble and self._trouble:
            logger.info("%s is reached again", self._settings.url)
        self._trouble = trouble


def context_of(settings: TelemetrySettings) -> ssl.SSLContext:
    """TLS 1.2 or later, the server's name checked, one CA believed, the board's own certificate; raises ``OSError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names and asks for a certificate by itself
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile=settings.ca)
    context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    return context


def _no_password() -> str:
    """A key that is encrypted is an error; OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted: a service has nobody to ask for the password")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
