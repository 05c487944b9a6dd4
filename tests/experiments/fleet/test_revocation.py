"""The list of revoked certificates, as openssl reads it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from contracts.board_requests import board_request
from cryptography import x509

from experiments.fleet.key_folder import Signer, create_keys, make_board, make_ca, new_key, read_signer
from experiments.fleet.revocation import record_certificate, revoke_certificates
from fedge.errors import BadInput

NOW = datetime.now(UTC)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["fleet.lan"], NOW, days=30)
    return tmp_path / "keys"


def issue(keys: Path, board: str, days: int = 3) -> Path:
    """Make and record a certificate of a board; return its file."""
    made = make_board(signer(keys), board_request(board), board, NOW, days)
    record_certificate(keys, made)
    return keys / "issued" / f"{board}-{made.serial_number:x}.crt"


def signer(keys: Path) -> Signer:
    return read_signer(keys / "ca.crt", keys / "ca.key")


def revoke(keys: Path, board: str, ca: Signer | None = None) -> int:
    return revoke_certificates(ca or signer(keys), folder=keys, listed=keys / "ca.crl", board=board, now=NOW)


def verify(keys: Path, certificate: Path) -> str:
    command = ["openssl", "verify", "-crl_check_all", "-CRLfile", str(keys / "ca.crl"), "-CAfile", str(keys / "ca.crt")]
    done = subprocess.run([*command, str(certificate)], capture_output=True, text=True, check=False)
    return "OK" if done.returncode == 0 else done.stderr


def test_all_certificates_of_a_board_are_revoked_and_stay_so_when_another_is(keys):
    stolen, again, other, honest = (issue(keys, board) for board in ("nano-1", "nano-1", "nano-10", "tx2-1"))

    assert [revoke(keys, board) for board in ("nano-1", "nano-10", "nano-1")] == [2, 1, 2]
    assert all("certificate revoked" in verify(keys, path) for path in (stolen, again, other))
    assert verify(keys, honest) == "OK"
    assert verify(keys, issue(keys, "nano-1")) == "OK"  # a board that replaces it


def test_the_list_is_valid_as_long_as_the_ca_also_on_a_server_with_a_slow_clock(keys):
    issue(keys, "nano-1")
    revoke(keys, "nano-1")
    listed = x509.load_pem_x509_crl((keys / "ca.crl").read_bytes())

    assert listed.last_update_utc < NOW - timedelta(minutes=30)
    assert listed.next_update_utc == signer(keys).certificate.not_valid_after_utc


def test_a_board_without_a_recorded_certificate_is_told_so(keys):
    issue(keys, "nano-2")

    with pytest.raises(BadInput, match="no certificate of nano-1"):
        revoke(keys, "nano-1")
    assert not (keys / "ca.crl").exists()


@pytest.mark.parametrize("file", ["ca.crl", "issued/nano-1-0.crt"])
def test_a_file_that_holds_something_else_is_named(keys, file):
    issue(keys, "nano-1")
    (keys / file).write_text("rubbish", encoding="utf-8")

    with pytest.raises(BadInput, match=file.rpartition("/")[2]):
        revoke(keys, "nano-1")


def test_a_damaged_certificate_of_another_board_keeps_none_from_being_revoked(keys):
    issue(keys, "nano-1")
    (keys / "issued/nano-2-0.crt").write_text("rubbish", encoding="utf-8")

    assert revoke(keys, "nano-1") == 1


def test_a_list_of_another_ca_is_not_continued(keys, tmp_path):
    issue(keys, "nano-1")
    revoke(keys, "nano-1")
    other = tmp_path / "other"
    create_keys(other, ["fleet.lan"], NOW, days=30)
    issue(other, "nano-1")
    (other / "ca.crl").write_bytes((keys / "ca.crl").read_bytes())

    with pytest.raises(BadInput, match="a list of another CA"):
        revoke(other, "nano-1")
    with pytest.raises(BadInput, match="no certificate of nano-1"):
        revoke(keys, "nano-1", make_ca(new_key(), NOW, days=2))
