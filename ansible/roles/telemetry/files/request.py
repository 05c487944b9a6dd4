"""A board's key for its telemetry, and the request for a certificate where there is none that holds; prints JSON.

``{"made": whether a key was made, "why": in words or null, "request": PEM or null}``. The key is made here and never
leaves the board. A certificate holds when it is for this key and this board, by the CA that the board trusts, and more
than a third of its time is left.
"""
# ruff: noqa: INP001 - a program that the role brings

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY, CERTIFICATE = "board.key", "board.crt"
MIN_REMAINING_SHARE = 1 / 3
"""Share of a certificate's validity below which it is renewed: late enough to be rare, early enough for a board that
was switched off for weeks.
"""


def renewal_reason(certificate: bytes | None, public: bytes, ca: bytes, board: str, now: datetime) -> str | None:
    """Return why a new certificate is needed; None if the present one is valid.

    Certificates are PEM, ``public`` is the board's public key as DER, ``now`` is in UTC.
    """
    if certificate is None:
        return "there is none"
    try:
        has = x509.load_pem_x509_certificate(certificate)
        has.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except (ValueError, TypeError, InvalidSignature):
        return "the present one is not of this CA"
    return unfit_reason(has, public, board, now)


def unfit_reason(has: x509.Certificate, public: bytes, board: str, now: datetime) -> str | None:
    """Return why a certificate of the right CA is not valid; None if it is. Arguments as for ``renewal_reason``."""
    if public_key_der(has.public_key()) != public:  # type: ignore[arg-type]
        return "the present one is for another key"
    if has.subject != _subject(board):
        return "the present one has another name"
    until, since = has.not_valid_after_utc, has.not_valid_before_utc
    if until - now < (until - since) * MIN_REMAINING_SHARE:
        return f"the present one ends on {until:%Y-%m-%d}"
    return None


def public_key_der(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as DER."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def request(key: ec.EllipticCurvePrivateKey, board: str) -> str:
    """Return a certificate request as PEM with the board's name and key."""
    made = x509.CertificateSigningRequestBuilder().subject_name(_subject(board)).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _subject(board: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, board)])


def read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """Return the stored key; None if there is none or it is not a P-256 key."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    right = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    return key if right else None  # type: ignore[return-value]


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, user: str | None) -> None:
    """Write the key atomically, readable by ``user`` only at any moment."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400), "wb") as file:
        if user is not None:
            account = pwd.getpwnam(user)
            os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


def main(argv: list[str] | None = None) -> int:
    """Create what is missing, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("board")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--user", help="whose key it is; this user's own by default")
    parser.add_argument("--check", action="store_true", help="make nothing")
    asked = parser.parse_args(argv)
    found = read_key(asked.folder / KEY)
    if found is None and asked.check:
        print(json.dumps({"made": True, "why": "there is none", "request": None}))  # noqa: T201 - its answer to Ansible
        return 0
    key = found or ec.generate_private_key(ec.SECP256R1())
    if found is None:
        write_key(asked.folder / KEY, key, asked.user)
    path = asked.folder / CERTIFICATE
    present = path.read_bytes() if path.is_file() else None
    why = renewal_reason(
        present,
        public=public_key_der(key.public_key()),
        ca=asked.ca.read_bytes(),
        board=asked.board,
        now=datetime.now(UTC),
    )
    wanted = request(key, asked.board) if why is not None else None
    print(json.dumps({"made": found is None, "why": why, "request": wanted}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
