"""HTTP connections with limits of number, size and time: whoever says nothing takes no place from the others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512
"""Connections in all; half of the files that a process may usually open (1,024), so that the store has the rest."""
MAX_PER_ADDRESS = 64
"""Connections of one address that is not this machine's: a browser has six. A proxy here may have all."""
MAX_HEAD_BYTES = 32 * 2**10
"""Bytes of a request's head."""
REQUEST_LIMIT_S = 10.0
"""Seconds in which a request, with its body, must arrive. Default; the page's requests fit into one packet."""


class LimitedConnection(H11Protocol):
    """A connection of uvicorn that is closed if there are too many, or if a request does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if self._is_one_too_many():
            self.transport.abort()
        else:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._renew_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._renew_deadline()

    def _is_one_too_many(self) -> bool:
        address = self.client[0] if self.client else ""
        own = sum(one.client is not None and one.client[0] == address for one in self.connections)
        local = address in ("", "127.0.0.1", "::1")
        return len(self.connections) > MAX_CONNECTIONS or (not local and own > MAX_PER_ADDRESS)

    def _renew_deadline(self) -> None:
        """Let no deadline run while a whole request is answered, and one otherwise."""
        cycle = cast("Any", self.cycle)  # None before the first request
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._clear_deadline()
        elif self._deadline is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
