"""Who may read the board page: a token where it is not bound to loopback, names it answers to, headers it sends."""

from __future__ import annotations

import hmac
import ipaddress
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

MIN_TOKEN_LENGTH = 16
"""Characters; shorter ones could be guessed. Chosen by us."""
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
"""What needs no token: the page itself says nothing of the fleet."""


WORLD_PERMISSIONS = stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Access:
    """``token`` None: everybody who can connect may read. ``names``: host names that the page answers to."""

    token: str | None = field(default=None, repr=False)
    names: frozenset[str] = frozenset({"localhost"})
    any_address: bool = False
    """Whether it answers to any IP address, not to loopback's alone."""
    cookie: str = "fedge-board"
    secure: bool = False
    """Whether browsers come over https, through a proxy."""

    def knows_host(self, header: str) -> bool:
        """Whether a request's Host is the page's own: a foreign name that resolves here is somebody else's page."""
        name = parse_host(header)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback

    def may_read(self, authorization: str, cookies: str) -> bool:
        """Whether a request carries the token, or the cookie that was given for it; compared in constant time."""
        if self.token is None:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and _is_equal(given.strip(), self.token):
            return True
        return _is_equal(_read_cookie(cookies, self.cookie), self.cookie_value)

    @property
    def cookie_value(self) -> str:
        """The cookie's value: shows that its holder knew the token, without being it."""
        return hmac.new((self.token or "").encode(), b"fedge board page", sha256).hexdigest()


def build_access(host: str, port: int, token: str | None, extra_names: tuple[str, ...] = ()) -> Access:
    """What a page bound to ``host`` answers to."""
    wide = not is_loopback(host)
    own = {socket.gethostname().lower(), socket.getfqdn().lower()} if wide else set()
    names = frozenset({"localhost", *own, *(f"{name}.local" for name in own if "." not in name), *extra_names})
    if not _is_address(host):
        names |= {host.lower()}
    return Access(token, names, any_address=wide, cookie=f"fedge-board-{port}")


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what is bound to ``host``."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_host(header: str) -> str:
    """The name or address in a Host header, without its port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def generate_token() -> str:
    return secrets.token_urlsafe(32)


def read_or_create_token(path: Path) -> str:
    """The token in a file that not everybody may read; where there is none, one is made for its owner alone."""
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
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
