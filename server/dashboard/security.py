"""Access control of the dashboard: tokens, accepted host names and security headers."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from fedge.errors import BadInput
from fedge.network_addresses import is_address, is_loopback

MIN_TOKEN_LENGTH = 16
"""Characters of a token; 16 random characters of base64 are 96 bits, too many to guess."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
OPEN_TO_ALL = ("/", "/api/login")
"""Paths that need no token; the page itself contains nothing about the fleet."""
WORLD_PERMISSIONS = stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of a dashboard.

    Attributes:
        token: The token; None lets everybody read who can connect.
        any_address: True if it answers to any IP address, not only to loopback addresses.
        cookie: Name of the cookie that replaces the token in browsers.
        secure: True if browsers connect over HTTPS, through a proxy.
    """

    token: str | None = field(default=None, repr=False)
    names: frozenset[str] = frozenset({"localhost"})
    any_address: bool = False
    cookie: str = "fedge-board"
    secure: bool = False

    def knows_host(self, header: str) -> bool:
        """Return True if a request's Host header names this dashboard, which prevents DNS rebinding."""
        name = parse_host(header)
        return name in self.names or (is_address(name) and (self.any_address or is_loopback(name)))

    def may_read(self, authorization: str, cookies: str) -> bool:
        """Return True if a request has the token or its cookie; compared in constant time."""
        if self.token is None:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and _is_equal(given.strip(), self.token):
            return True
        return _is_equal(_read_cookie(cookies, self.cookie), self.cookie_value)

    @property
    def cookie_value(self) -> str:
        """Value of the cookie, an HMAC that proves knowledge of the token without containing it."""
        return hmac.new((self.token or "").encode(), b"fedge board page", sha256).hexdigest()


def build_access(host: str, port: int, token: str | None, extra_names: tuple[str, ...] = ()) -> Access:
    """Build the access rules of a dashboard that is bound to ``host`` and also answers to ``extra_names``.

    The port becomes part of the name of the cookie.
    """
    wide = not is_loopback(host)
    own = {socket.gethostname().lower(), socket.getfqdn().lower()} if wide else set()
    names = frozenset({"localhost", *own, *(f"{name}.local" for name in own if "." not in name), *extra_names})
    if not is_address(host):
        names |= {host.lower()}
    return Access(token, names, any_address=wide, cookie=f"fedge-board-{port}")


def parse_host(header: str) -> str:
    """Return the name or address in a Host header, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def generate_token() -> str:
    return secrets.token_urlsafe(32)


def read_or_create_token(path: Path) -> str:
    """Read the token from a file, or create the file with a new token that only its owner can read.

    Raises:
        BadInput: The file is readable by everybody, cannot be read or created, or has an invalid token.
    """
    try:
        if path.stat().st_mode & WORLD_PERMISSIONS:
            raise BadInput(str(path), "a token that everybody on this machine may read", f"chmod o= {path}")
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return _create_token(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "a file that cannot be read", "a file that holds the page's token") from error
    if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
        right = f"one line of at least {MIN_TOKEN_LENGTH} characters without spaces, or no file: then one is made"
        raise BadInput(str(path), f"a token of {len(token)} characters", right)
    return token


def _create_token(path: Path) -> str:
    token = generate_token()
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as handle:
            handle.write(token + "\n")
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be made ({error.strerror})", "a folder to write to") from error
    return token


def _is_equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _read_cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
