"""Another fedge board as a source of the page: asked over HTTP, believed only as far as it can be read."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from pydantic import TypeAdapter, ValidationError

from fedge.errors import RunFailed
from server.dashboard.views import BoardHistory, FleetView, RoundView

REQUEST_TIMEOUT_S = 10.0
"""For one answer. Chosen by us."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Bytes of an answer; ten thousand boards take a tenth of it. Chosen by us."""
PERIOD_S = 1.0
"""The other page is asked at most so often. Chosen by us."""
ACCESS_ADVICE = "it needs its own token: --relay-token-file FILE, or #token=... at the end of the address"
CA_ADVICE = "its certificate is of no CA that is known here: name the CA's file in SSL_CERT_FILE"
VIEW: TypeAdapter[FleetView] = TypeAdapter(FleetView)
HISTORY: TypeAdapter[BoardHistory] = TypeAdapter(BoardHistory)
ROUND: TypeAdapter[RoundView] = TypeAdapter(RoundView)


class _NoRedirect(HTTPRedirectHandler):
    """The token goes to the address that was given, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class RelaySource:
    """Shows what the page at ``url`` shows; ``token`` is that page's."""

    def __init__(self, url: str, token: str | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._url, self._token, self._now_s = url.rstrip("/"), token, now_s
        self._opener: OpenerDirector = build_opener(
            ProxyHandler({}), _NoRedirect(), HTTPSHandler(context=ssl.create_default_context())
        )
        self._view, self._tag, self._asked_s = FleetView(), "", float("-inf")

    def view(self) -> FleetView:
        if self._now_s() - self._asked_s < PERIOD_S:
            return self._view
        self._asked_s = self._now_s()
        try:
            body = self._get("/api/view", self._tag)
            if body is not None:
                self._view = VIEW.validate_json(body)
            elif self._view.problem.startswith(self._url):
                self._view = replace(self._view, problem="")
        except RunFailed as error:
            self._tag, self._view = "", replace(self._view, problem=str(error))
        except ValidationError:
            self._tag = ""
            self._view = replace(self._view, problem=f"{self._url} is no fedge board of this version")
        return self._view

    def history(self, board: str) -> BoardHistory | None:
        body = self._get(f"/api/boards/{quote(board, safe='')}")
        return None if body is None else HISTORY.validate_json(body)

    def round(self, number: int) -> RoundView | None:
        body = self._get(f"/api/rounds/{number}")
        return None if body is None else ROUND.validate_json(body)

    def _get(self, path: str, tag: str = "") -> bytes | None:
        """The answer's body; None where there is none (404), or where it is what ``tag`` stands for."""
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if tag:
            headers["If-None-Match"] = tag
        try:
            with self._opener.open(Request(self._url + path, headers=headers), timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310  the command takes http and https alone
                body: bytes = answer.read(MAX_RESPONSE_BYTES + 1)
                if path == "/api/view":
                    self._tag = answer.headers.get("ETag") or ""
        except HTTPError as error:
            if error.code in {304, 404}:
                return None
            why = ACCESS_ADVICE if error.code == 401 else f"it answered {error.code}"
            raise RunFailed(f"{self._url}: {why}") from error
        except (URLError, OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                raise RunFailed(f"{self._url}: {CA_ADVICE}") from error
            raise RunFailed(f"{self._url} does not answer: {getattr(error, 'reason', None) or error}") from error
        if len(body) > MAX_RESPONSE_BYTES:
            raise RunFailed(f"{self._url}: its answer is too large")
        return body
