"""Revoked telemetry certificates: a record of every board's certificate, and the CA's list that nginx reads."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from experiments.fleet.key_folder import BACKDATED_BY, Signer, encode_certificate, replace_file
from fedge.errors import BadInput, refuse_unwritable

ISSUED = "issued"
"""Folder beside the CA's key with every certificate of a board: a list of revoked ones names them by serial number."""
REVOCATIONS = "ca.crl"
"""File beside the CA's certificate that lists the revoked ones."""


def record_certificate(folder: Path, certificate: x509.Certificate) -> None:
    """Keep a board's certificate in the CA's folder, so that it can be revoked.

    Raises:
        BadInput: If the folder cannot be written.
    """
    right = "a folder of yours: a certificate that is not recorded cannot be revoked"
    with refuse_unwritable(folder, right, "folder"):
        (folder / ISSUED).mkdir(exist_ok=True)
    name = f"{_board_name(certificate)}-{certificate.serial_number:x}.crt"
    replace_file(folder / ISSUED / name, encode_certificate(certificate))


def revoke_certificates(ca: Signer, folder: Path, listed: Path, board: str, now: datetime) -> int:
    """Add all recorded certificates of a board to the CA's list of revoked ones.

    The list is valid as long as the CA: nginx would refuse every board after the end of a list.

    Args:
        ca: The fleet's CA.
        folder: The folder of its key, with the record of certificates.
        listed: The list; created if it does not exist.
        board: Name of the board.
        now: Current time, time zone aware.

    Returns:
        The number of the board's certificates that are revoked now and have not expired.

    Raises:
        BadInput: If none is recorded, or a file is malformed or of another CA.
    """
    found = [one for one in _read_issued(folder / ISSUED, board, ca) if one.not_valid_after_utc > now]
    if not found:
        got = f"no certificate of {board} in {folder / ISSUED} that is still valid"
        right = "the name of a board that was provisioned; one of an earlier version of fedge ends after 90 days"
        raise BadInput("BOARD", got, right)
    known = _read_list(listed, ca)
    revoked = {one.serial_number: one for one in known or ()}
    for certificate in found:
        if certificate.serial_number not in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
            revoked[certificate.serial_number] = entry.revocation_date(now - BACKDATED_BY).build()
    number = 1 if known is None else known.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
    builder = (
        x509.CertificateRevocationListBuilder(revoked_certificates=list(revoked.values()))
        .issuer_name(ca.certificate.subject)
        .last_update(now - BACKDATED_BY)
        .next_update(ca.certificate.not_valid_after_utc)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    replace_file(listed, builder.sign(ca.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    return len(found)


def _board_name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _read_issued(folder: Path, board: str, ca: Signer) -> list[x509.Certificate]:
    """Return the recorded certificates of a board that this CA signed; a damaged file of another board is not read."""
    found = []
    for path in sorted(path for path in folder.glob("*.crt") if path.stem.rpartition("-")[0] == board):
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except (OSError, ValueError) as error:
            right = "the file that was made, from a backup; without it, remove it and revoke the others"
            raise BadInput(str(path), f"no readable certificate ({error})", right) from error
        if _board_name(certificate) == board and certificate.issuer == ca.certificate.subject:
            found.append(certificate)
    return found


def _read_list(path: Path, ca: Signer) -> x509.CertificateRevocationList | None:
    """Return the CA's list; None if there is none yet."""
    try:
        listed = x509.load_pem_x509_crl(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadInput(str(path), f"no readable list ({error})", "the file that was made") from error
    if not listed.is_signature_valid(ca.key.public_key()):
        raise BadInput(str(path), "a list of another CA", f"no such file, or that of {ca.certificate.subject}")
    return listed
