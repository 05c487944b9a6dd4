"""The folder of keys: complete or absent, closed to others, never overwritten, renewed from its CA."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from contracts.crashing import disk_full
from cryptography import x509

from experiments.fleet import key_folder
from experiments.fleet.key_folder import create_keys, inspect_keys, list_expiring, renew_server_certificate
from fedge.errors import BadInput

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = {"ca.key", "ca.crt", "server.key", "server.crt"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["fleet.lan", "192.168.1.10"], NOW, days=365)
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_and_its_keys_are_closed_to_others(folder: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}

    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes == {"ca.key": 0o600, "ca.crt": 0o644, "server.key": 0o600, "server.crt": 0o644}


def test_key_and_certificate_are_what_a_tls_server_loads(folder: Path) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.crt", folder / "server.key")
    ssl.create_default_context(cafile=str(folder / "ca.crt"))


def test_it_tells_what_it_made(folder: Path) -> None:
    found = inspect_keys(folder)

    assert found.hosts == ("fleet.lan", "192.168.1.10")
    assert (found.server_until, found.ca_until) == (NOW + timedelta(days=365), NOW + timedelta(days=3650))
    assert not [path for path in folder.parent.iterdir() if path != folder]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    create_keys(tmp_path / "keys", ["a"], NOW, days=1)

    assert set(contents(tmp_path / "keys")) == NAMES


def test_a_ca_is_never_overwritten_and_the_message_says_what_is_there(folder: Path) -> None:
    before = contents(folder)

    with pytest.raises(BadInput, match=r"a CA until 2036-11-18, .* until 2027-11-21 for fleet.lan, .*--renew"):
        create_keys(folder, ["other.lan"], NOW, days=365)
    assert contents(folder) == before


@pytest.mark.parametrize("left", ["ca.key", "ca.crt"])
def test_half_a_ca_is_not_overwritten_either(folder: Path, left: str) -> None:
    for name in NAMES - {left}:
        (folder / name).unlink()

    with pytest.raises(BadInput, match="a CA already, but not whole"):
        create_keys(folder, ["other.lan"], NOW, days=365)
    assert set(contents(folder)) == {left}


@pytest.mark.parametrize(
    ("folder", "hosts", "words"),
    [(".", ["a"], "holds something else; a new or an empty folder"), ("keys", [], "--host: got none")],
)
def test_a_folder_with_something_else_and_no_host_are_refused(
    tmp_path: Path, folder: str, hosts: list[str], words: str
) -> None:
    (tmp_path / "notes.txt").touch()

    with pytest.raises(BadInput, match=words):
        create_keys(tmp_path / folder, hosts, NOW, days=365)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_disk_that_fills_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = key_folder._write_file

    def failing(path: Path, content: bytes) -> None:
        if path.name == "server.key":
            disk_full()
        write(path, content)

    monkeypatch.setattr(key_folder, "_write_file", failing)

    with pytest.raises(BadInput, match="No space left"):
        create_keys(tmp_path / "keys", ["a"], NOW, days=365)
    assert list(tmp_path.iterdir()) == []


def test_a_renewal_replaces_the_certificate_alone_and_keeps_its_hosts(folder: Path) -> None:
    before = contents(folder)
    found = renew_server_certificate(folder, [], NOW + timedelta(days=300), days=365)
    after = contents(folder)

    assert {name for name in NAMES if before[name] != after[name]} == {"server.crt"}
    assert set(after) == NAMES
    assert found.hosts == ("fleet.lan", "192.168.1.10")
    assert found.server_until == NOW + timedelta(days=665)


def test_a_renewal_may_name_other_hosts(folder: Path) -> None:
    assert renew_server_certificate(folder, ["new.lan"], NOW, days=365).hosts == ("new.lan",)


def test_a_renewal_makes_a_new_key_where_the_old_one_was_removed(folder: Path) -> None:
    old = (folder / "server.key").read_bytes()
    (folder / "server.key").unlink()
    renew_server_certificate(folder, [], NOW, days=365)

    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.crt", folder / "server.key")
    assert (folder / "server.key").read_bytes() != old
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_renewal_beyond_the_ca_is_refused_and_changes_nothing(folder: Path) -> None:
    before = contents(folder)

    with pytest.raises(BadInput, match="the CA ends on"):
        renew_server_certificate(folder, [], NOW + timedelta(days=3600), days=365)
    assert contents(folder) == before


def test_a_ca_key_that_others_can_read_is_not_used(folder: Path) -> None:
    (folder / "ca.key").chmod(0o640)

    with pytest.raises(BadInput, match=r"mode 0640, .*chmod 600"):
        renew_server_certificate(folder, [], NOW, days=365)


def test_a_ca_key_that_is_kept_elsewhere_has_to_be_brought_back(folder: Path) -> None:
    (folder / "ca.key").unlink()

    with pytest.raises(BadInput, match=r"ca.key: got no such file; bring the key back"):
        renew_server_certificate(folder, [], NOW, days=365)


def test_the_key_of_another_ca_is_refused(folder: Path, tmp_path: Path) -> None:
    create_keys(tmp_path / "other", ["a"], NOW, days=365)
    (folder / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())

    with pytest.raises(BadInput, match=r"a key that is not that of ca\.crt"):
        renew_server_certificate(folder, [], NOW, days=365)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (0, []),
        (334, []),
        (336, ["server.crt ends on 2027-11-21: fedge fleet keys --folder"]),
        (365, ["server.crt ended on 2027-11-21: fedge fleet keys --folder"]),
        (3630, ["server.crt ended on 2027-11-21", "ca.crt ends on 2036-11-18: make a new CA"]),
    ],
)
def test_what_ends_within_thirty_days_is_told_with_its_cure(folder: Path, days: int, words: list[str]) -> None:
    lines = list_expiring(inspect_keys(folder), NOW + timedelta(days=days))

    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_a_folder_without_keys_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ca.crt: got no such file; a folder that `fedge fleet keys` made"):
        inspect_keys(tmp_path)


def test_a_file_that_is_no_certificate_is_told_so(folder: Path) -> None:
    (folder / "server.crt").write_text("hello", encoding="utf-8")

    with pytest.raises(BadInput, match="no readable certificate"):
        inspect_keys(folder)


def test_the_ca_holds_longer_than_a_long_server_certificate(tmp_path: Path) -> None:
    create_keys(tmp_path / "keys", ["a"], NOW, days=5000)
    ca = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())

    assert ca.not_valid_after_utc == NOW + timedelta(days=5000)
