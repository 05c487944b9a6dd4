"""The folder of the fleet's keys: created atomically, never overwritten, its server certificate renewable."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from experiments.fleet.certificates import (
    CA_DAYS,
    Key,
    Signer,
    encode_certificate,
    encode_key,
    list_certificate_hosts,
    make_ca,
    make_server,
    new_key,
    parse_host,
)
from fedge.errors import BadInput

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
        hosts: Hosts that the server certificate covers, without loopback.
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
        _replace_file(key_path, encode_key(key))
    _replace_file(folder / SERVER_CERT, encode_certificate(server))
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


def _replace_file(path: Path, content: bytes) -> None:
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
