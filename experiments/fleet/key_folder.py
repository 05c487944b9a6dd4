"""The fleet's keys: X.509 certificates as values, and their folder, created atomically and never overwritten."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
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
    # A certificate ends at a whole second: with the fraction, one as long as its CA would outlive it.
    until, last = now.replace(microsecond=0) + timedelta(days=days), ca.certificate.not_valid_after_utc
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


CA_KEY, CA_CERT, SERVER_KEY, SERVER_CERT = "ca.key", "ca.crt", "server.key", "server.crt"
PRIVATE_FOLDER, PRIVATE_FILE, PUBLIC_FILE = 0o700, 0o600, 0o644
WARN_WITHIN = timedelta(days=30)
"""Certificates that end within this time are reported. Default: enough time to copy a new CA to every board by hand."""


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Contents of a key folder.

    Attributes:
        ca_until: End of the CA's validity (UTC).
        server_until: End of the server certificate's validity (UTC).
    """

    folder: Path
    ca_until: datetime
    server_until: datetime
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        hosts = ", ".join(self.hosts) or "loopback only"
        return (
            f"a CA until {self.ca_until:%Y-%m-%d}, a server certificate until {self.server_until:%Y-%m-%d} for {hosts}"
        )


def create_keys(folder: Path, hosts: Sequence[str], now: datetime, days: int) -> KeyFolder:
    """Create a CA, and a server certificate valid for ``days`` from ``now``, in a new folder.

    The folder appears complete or not at all. ``now`` is time zone aware.

    Raises:
        BadInput: If the folder is not empty: a CA is never overwritten, because every board trusts it.
    """
    for host in hosts:
        parse_host(host)
    if not hosts:
        raise BadInput("--host", "none", "the names or addresses by which boards reach the server")
    if (folder / CA_CERT).exists() or (folder / CA_KEY).exists():
        right = "--renew makes a new server certificate from this CA; another folder gets another CA"
        raise BadInput("--folder", f"{folder}, where there is {_describe_folder(folder)}", right)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput("--folder", f"{folder}, which holds something else", "a new or an empty folder")
    ca, key = make_ca(new_key(), now, max(CA_DAYS, days)), new_key()
    server = make_server(ca, key=key, hosts=hosts, now=now, days=days)
    _create_folder(
        folder,
        {
            CA_KEY: encode_key(ca.key),
            CA_CERT: encode_certificate(ca.certificate),
            SERVER_KEY: encode_key(key),
            SERVER_CERT: encode_certificate(server),
        },
    )
    return inspect_keys(folder)


def renew_server_certificate(folder: Path, hosts: Sequence[str], now: datetime, days: int) -> KeyFolder:
    """Renew the server certificate with the CA of the folder; without ``hosts``, for those of the current certificate.

    The server's key is kept, so that one file is replaced and key and certificate always match; a missing key is
    created.
    """
    ca = read_signer(folder / CA_CERT, folder / CA_KEY)
    kept = hosts or list_certificate_hosts(_read_certificate(folder / SERVER_CERT))
    key_path = folder / SERVER_KEY
    key = _read_key(key_path) if key_path.exists() else new_key()
    server = make_server(ca, key=key, hosts=kept, now=now, days=days)
    if not key_path.exists():
        replace_file(key_path, encode_key(key))
    replace_file(folder / SERVER_CERT, encode_certificate(server))
    return inspect_keys(folder)


def read_signer(certificate: Path, key: Path) -> Signer:
    """Read a CA from its certificate and key files.

    Raises:
        BadInput: If a file is missing or malformed, the two do not match, or other users may read the key.
    """
    ca = Signer(_read_certificate(certificate), _read_key(key))
    if ca.certificate.public_key() != ca.key.public_key():
        raise BadInput(str(key), f"a key that is not that of {certificate.name}", "the key that was made with it")
    return ca


def inspect_keys(folder: Path) -> KeyFolder:
    """Read the validity periods and hosts of a key folder.

    Raises:
        BadInput: If the folder does not hold the fleet's certificates.
    """
    ca, server = _read_certificate(folder / CA_CERT), _read_certificate(folder / SERVER_CERT)
    return KeyFolder(folder, ca.not_valid_after_utc, server.not_valid_after_utc, list_certificate_hosts(server))


def list_expiring(found: KeyFolder, now: datetime) -> list[str]:
    """Return one line with a remedy per certificate that has expired or will within ``WARN_WITHIN``; empty if none."""
    renewal = f"fedge fleet keys --folder {found.folder} --renew, then restart the SuperLink and reload the proxy"
    replacement = "make a new CA in another folder, and copy its ca.crt to every board"
    lines = []
    for what, until, cure in (
        (SERVER_CERT, found.server_until, renewal),
        (CA_CERT, found.ca_until, replacement),
    ):
        if until - now < WARN_WITHIN:
            when = f"ended on {until:%Y-%m-%d}" if until <= now else f"ends on {until:%Y-%m-%d}"
            lines.append(f"{found.folder / what} {when}: {cure}")
    return lines


def _describe_folder(folder: Path) -> str:
    try:
        return str(inspect_keys(folder))
    except BadInput as error:
        return f"a CA already, but not whole ({error})"


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "a folder that `fedge fleet keys` made") from None
    except (OSError, ValueError) as error:
        raise BadInput(str(path), f"no readable certificate ({error})", "the file that was made") from error


def _read_key(path: Path) -> Key:
    try:
        mode = path.stat().st_mode & 0o777
        # Windows has no such permission bits: there, a folder of the user is closed to others already.
        if os.name == "posix" and mode & 0o077:
            raise BadInput(str(path), f"mode {mode:04o}, which lets others read it", f"chmod 600 {path}")
        key = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise BadInput(str(path), "no such file", "bring the key back from where it is kept") from None
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(str(path), f"no readable key ({error})", "the file that was made") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(str(path), "a key of another kind", "the elliptic-curve key that was made")
    return key


def _create_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Fill a temporary sibling, then rename it, so that readers see either nothing or the complete folder."""
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
        try:
            staging.chmod(PRIVATE_FOLDER)
            for name, content in files.items():
                _write_file(staging / name, content)
            staging.rename(folder.absolute())  # fails on a folder that somebody else has filled meanwhile
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except OSError as error:
        raise BadInput(
            "--folder", f"{folder} ({error.strerror})", "a new or empty folder that you may write"
        ) from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_file(staging, content)
        staging.replace(path)
    except OSError as error:
        raise BadInput(str(path), f"a file that cannot be replaced ({error.strerror})", "a folder of yours") from error
    finally:
        staging.unlink(missing_ok=True)


def _write_file(path: Path, content: bytes) -> None:
    """Create a file and flush it to disk; keys are created unreadable for others from the start."""
    mode = PRIVATE_FILE if content.startswith(b"-----BEGIN PRIVATE KEY") else PUBLIC_FILE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
