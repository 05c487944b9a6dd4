"""Checks that the connection to a SuperLink is acceptable: TLS wherever it leaves the machine."""

from __future__ import annotations

import socket
from pathlib import Path

from cryptography import x509

from fedge.errors import BadInput
from fedge.experiment import SuperlinkSpec
from fedge.network_addresses import is_loopback

CONNECT_TIMEOUT_S = 5.0
"""Default limit for a SuperLink to accept a connection, in seconds."""


def check_superlink(superlink: SuperlinkSpec) -> None:
    """Check address and certificate of a SuperLink without connecting.

    Raises:
        BadInput: If the address is malformed, the CA cannot be read, or the connection would leave the machine in plain
            text.
    """
    host, colon, port = superlink.address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise BadInput("superlink.address", repr(superlink.address), "host:port, for example 127.0.0.1:8000")
    if superlink.root_certificates is None:
        if not is_loopback(host.strip("[]")):
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
    """Check that the SuperLink's address accepts a TCP connection.

    Raises:
        BadInput: If nothing accepts it within ``CONNECT_TIMEOUT_S``.
    """
    host, _, port = superlink.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        got = f"{superlink.address}, where nobody answers ({error.strerror or error})"
        right = "the address of a SuperLink that runs: start flower-superlink first (docs/how-to/fleet.md)"
        raise BadInput("superlink.address", got, right) from error
