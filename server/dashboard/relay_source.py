"""Another dashboard as a source, polled over HTTP; its answers are validated."""

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

from pydantic import ValidationError

from fedge.errors import RunFailed
from server.dashboard.views import HISTORY_JSON, ROUND_JSON, VIEW_JSON, BoardHistory, FleetView, RoundView

REQUEST_TIMEOUT_S = 10.0
"""Timeout of one request in seconds; a default that allows for a large view over a slow link."""
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer; ten thousand boards need a tenth of it."""
PERIOD_S = 1.0
"""Least seconds between requests for the view; a default that bounds the load on the other dashboard."""
ACCESS_ADVICE = "it needs its own token: --relay-token-file FILE, or #token=... at the end of the address"
CA_ADVICE = "its certificate is of no CA that is known here: name the CA's file in SSL_CERT_FILE"


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirects, so that the token is sent to the given address only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class RelaySource:
    """Shows the view of another dashboard; ``now_s`` is a monotonic clock."""

    def __init__(self, url: str, token: str | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._url, self._token, self._now_s = url.rstrip("/"), token, now_s
        self._opener: OpenerDirector = build_opener(
            ProxyHandler({}), _NoRedirect(), HTTPSHandler(context=ssl.create_default_context())
        )
        self._view, self._tag, self._requested_s = FleetView(), "", float("-inf")

    def view(self) -> FleetView:
        if self._now_s() - self._requested_s < PERIOD_S:
            return self._view
        self._requested_s = self._now_s()
        try:
            body = self._get("/api/view", self._tag)
            if body is not None:
                self._view = VIEW_JSON.validate_json(body)
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
        return None if body is None else HISTORY_JSON.validate_json(body)

    def round(self, number: int) -> RoundView | None:
        body = self._get(f"/api/rounds/{number}")
        return None if body is None else ROUND_JSON.validate_json(body)

    def _get(self, path: str, tag: str = "") -> bytes | None:
        """Return the body of an answer; None for 304 (unchanged since ``tag``) and, but for the view, 404 (not found).

        Raises:
            RunFailed: The other dashboard does not answer, denies access, or its answer is too large.
        """
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if tag:
            headers["If-None-Match"] = tag
        try:
            with self._opener.open(Request(self._url + path, headers=headers), timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310  the command only accepts http and https
                body: bytes = answer.read(MAX_RESPONSE_BYTES + 1)
                if path == "/api/view":
                    self._tag = answer.headers.get("ETag") or ""
        except HTTPError as error:
            if error.code == 304 or (error.code == 404 and path != "/api/view"):
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
