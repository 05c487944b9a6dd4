"""Whether an experiment's way to its SuperLink is one that a run may take: encrypted wherever it leaves the machine."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from cryptography import x509

from fedge.errors import BadInput
from fedge.experiment import SuperlinkSpec

CONNECT_TIMEOUT_S = 5.0
"""How long a SuperLink may take to accept a connection; chosen by us."""


def check_superlink(superlink: SuperlinkSpec) -> None:
    """Raise ``BadInput`` for an address that is none, for a CA that cannot be read, for plain text on a network."""
    host, colon, port = superlink.address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput("superlink.address", repr(superlink.address), "host:port, for example 127.0.0.1:8000")
    if superlink.root_certificates is None:
        if not _is_loopback(host.strip("[]")):
            right = "superlink.root_certificates: the path of the CA's certificate; plain text is for loopback only"
            raise BadInput("superlink.address", f"{superlink.address} without a CA", right)
        return
    path = Path(superlink.root_certificates)
    try:
        x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        right = f"the CA's certificate (PEM), the ca.crt of `fedge fleet keys` ({reason})"
        raise BadInput("superlink.root_certificates", str(path), right) from error


def check_reachable(superlink: SuperlinkSpec) -> None:
    """Raise ``BadInput`` when nobody listens at the address."""
    host, _, port = superlink.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        got = f"{superlink.address}, where nobody answers ({error.strerror or error})"
        right = "the address of a SuperLink that runs: start flower-superlink first (docs/fleet.md)"
        raise BadInput("superlink.address", got, right) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
