"""X.509 certificates of the fleet as values: one CA, one server certificate, one certificate per board."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedge.errors import BadInput

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that every server certificate covers: the proxy and commands on the server reach the SuperLink on loopback."""
CA_DAYS = 3650
"""Default validity of a CA. Long, because replacing a CA means copying the new certificate to every board."""
SERVER_DAYS = 365
"""Default validity of a server certificate. Limits how long a leaked key is useful; renewal is cheap."""
BOARD_DAYS = 90
"""Default validity of a board's certificate, which only permits sending telemetry; provisioning renews it."""
BACKDATED_BY = timedelta(hours=1)
"""How far ``not_valid_before`` is dated back, so that boards whose clock is slow accept a new certificate."""
BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Board names that fit into a certificate: X.509 limits a common name to 64 characters."""
LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)", re.IGNORECASE)

Key = ec.EllipticCurvePrivateKey
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Signer:
    """A CA that can sign."""

    certificate: x509.Certificate
    key: Key


def parse_host(text: str) -> str | Address:
    """Parse a host as boards dial it: an IP address, or a name of letters, digits, hyphens and dots.

    Raises:
        BadInput: If the text is neither.
    """
    right = "a name such as fleet.example.org or an address such as 192.168.1.10, without port and without wildcard"
    with suppress(ValueError):
        address = ipaddress.ip_address(text)
        if address.is_unspecified or address.is_multicast or "%" in text:
            raise BadInput("--host", text, "an address that boards can dial")
        return address
    labels = text.split(".")
    if len(text) <= 253 and all(LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit():
        return text.lower()
    raise BadInput("--host", repr(text), right)


def new_key() -> Key:
    """Generate a private key on the curve P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def encode_key(key: Key) -> bytes:
    """Encode a key as unencrypted PEM; file permissions protect it, because services start without a passphrase."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encode_certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def make_ca(key: Key, now: datetime, days: int) -> Signer:
    """Create a self-signed CA that may sign end-entity certificates, but no further CA.

    It is valid for ``days`` from ``now``, which is time zone aware.
    """
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedge fleet CA {serial % 16**8:08x}")])
    usage = _key_usage(signs_certificates=True)
    builder = (
        _start_certificate(name, issuer=name, public=key.public_key(), now=now, until=now + timedelta(days=days))
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Signer(builder.sign(key, hashes.SHA384()), key)


def make_server(ca: Signer, key: Key, hosts: Sequence[str], now: datetime, days: int) -> x509.Certificate:
    """Create the server's certificate for loopback and the hosts (names or IP addresses) that boards dial.

    It is valid for ``days`` from ``now``, which is time zone aware.

    Raises:
        BadInput: If a host is malformed, or the certificate would outlive its CA.
    """
    until, last = now + timedelta(days=days), ca.certificate.not_valid_after_utc
    if until > last:
        left = max(0, (last - now).days)
        raise BadInput("--days", str(days), f"at most {left}: the CA ends on {last:%Y-%m-%d}; make a new one in time")
    names = dict.fromkeys(parse_host(host) for host in (*hosts, *LOOPBACK))
    alternatives = [x509.DNSName(name) if isinstance(name, str) else x509.IPAddress(name) for name in names]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedge SuperLink")])
    builder = (
        _start_certificate(subject, issuer=ca.certificate.subject, public=key.public_key(), now=now, until=until)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    )
    return _sign_leaf(ca, builder)


def parse_request(text: str) -> x509.CertificateSigningRequest:
    """Parse a certificate signing request (PKCS #10, PEM).

    Raises:
        BadInput: If the text is not such a request.
    """
    try:
        return x509.load_pem_x509_csr(text.encode())
    except ValueError as error:
        raise BadInput("the request", f"no readable one ({error})", "a PKCS #10 request in PEM") from error


def make_board(
    ca: Signer, request: x509.CertificateSigningRequest, board: str, now: datetime, days: int
) -> x509.Certificate:
    """Create the certificate with which a board authenticates when it sends telemetry.

    Only the public key is taken from the request, after its signature has been verified. The certificate is valid for
    ``days`` from ``now``, which is time zone aware, at most as long as the CA.

    Raises:
        BadInput: If the name is malformed, the signature is wrong, or the request asks for another name, for a CA or
            for any extension.
    """
    where = f"the request of {board}"
    if not BOARD.fullmatch(board):
        raise BadInput("the board", repr(board), "a name of up to 64 letters, digits and ._-")
    if not request.is_signature_valid:
        raise BadInput(where, "a signature that is not by its own key", "a request that the board made itself")
    subject_parts = [(part.oid, part.value) for part in request.subject]
    if subject_parts != [(NameOID.COMMON_NAME, board)]:
        raise BadInput(where, f"the subject {request.subject.rfc4514_string()!r}", f"CN={board} alone")
    if len(request.extensions):
        names = ", ".join(one.oid._name for one in request.extensions)  # noqa: SLF001  the library's own word for it
        raise BadInput(where, f"a wish for {names}", "a request without extensions; what it may do is decided here")
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        raise BadInput(where, "a key of another kind", "an elliptic-curve key on P-256")
    until = min(now + timedelta(days=days), ca.certificate.not_valid_after_utc)
    if until <= now:
        raise BadInput("the CA", f"one that ended on {until:%Y-%m-%d}", "a CA that holds (`fedge fleet keys`)")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, board)])
    builder = _start_certificate(subject, issuer=ca.certificate.subject, public=key, now=now, until=until)
    return _sign_leaf(
        ca, builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    )


def list_certificate_hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the hosts that a server certificate is valid for, without loopback."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    return tuple(host for host in found if host not in LOOPBACK)


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.not_valid_before(now - BACKDATED_BY).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _sign_leaf(ca: Signer, builder: x509.CertificateBuilder) -> x509.Certificate:
    """Sign a certificate that signs nothing itself."""
    builder = (
        builder.serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    return builder.sign(ca.key, hashes.SHA384())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
