"""The folder of keys: complete or absent, closed to others, never overwritten, renewed from its CA."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from contracts.board_requests import board_request
from contracts.crashing import disk_full
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from experiments.fleet import key_folder
from experiments.fleet.key_folder import (
    Signer,
    create_keys,
    inspect_keys,
    list_expiring,
    make_board,
    make_ca,
    make_server,
    new_key,
    parse_host,
    parse_request,
    renew_server_certificate,
)
from fedge.errors import BadInput

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMES = {"ca.key", "ca.crt", "server.key", "server.crt"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["fleet.lan", "192.168.1.10"], NOW, days=365)
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_and_its_keys_are_closed_to_others(folder):
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}

    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes == {"ca.key": 0o600, "ca.crt": 0o644, "server.key": 0o600, "server.crt": 0o644}


def test_a_server_certificate_may_last_as_long_as_its_ca_at_any_instant(tmp_path):
    found = create_keys(tmp_path / "keys", ["fleet.lan"], NOW + timedelta(microseconds=1), days=3650)

    assert found.server_until == found.ca_until


def test_key_and_certificate_are_what_a_tls_server_loads(folder):
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.crt", folder / "server.key")
    ssl.create_default_context(cafile=str(folder / "ca.crt"))


def test_a_ca_is_never_overwritten_and_the_message_says_what_is_there(folder):
    before = contents(folder)

    with pytest.raises(BadInput, match=r"a CA until 2036-11-18, .* until 2027-11-21 for fleet.lan, .*--renew"):
        create_keys(folder, ["other.lan"], NOW, days=365)
    assert contents(folder) == before


@pytest.mark.parametrize("left", ["ca.key", "ca.crt"])
def test_half_a_ca_is_not_overwritten_either(folder, left):
    for name in NAMES - {left}:
        (folder / name).unlink()

    with pytest.raises(BadInput, match="a CA already, but not whole"):
        create_keys(folder, ["other.lan"], NOW, days=365)
    assert set(contents(folder)) == {left}


@pytest.mark.parametrize(
    ("folder", "hosts", "words"),
    [(".", ["a"], "holds something else; a new or an empty folder"), ("keys", [], "--host: got none")],
)
def test_a_folder_with_something_else_and_no_host_are_refused(tmp_path, folder, hosts, words):
    (tmp_path / "notes.txt").touch()

    with pytest.raises(BadInput, match=words):
        create_keys(tmp_path / folder, hosts, NOW, days=365)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_disk_that_fills_half_way_leaves_nothing(tmp_path, monkeypatch):
    write = key_folder._write_file

    def failing(path: Path, content: bytes) -> None:
        if path.name == "server.key":
            disk_full()
        write(path, content)

    monkeypatch.setattr(key_folder, "_write_file", failing)

    with pytest.raises(BadInput, match="No space left"):
        create_keys(tmp_path / "keys", ["a"], NOW, days=365)
    assert list(tmp_path.iterdir()) == []


def test_a_renewal_replaces_the_certificate_alone_and_keeps_its_hosts(folder):
    before = contents(folder)
    found = renew_server_certificate(folder, [], NOW + timedelta(days=300), days=365)
    after = contents(folder)

    assert {name for name in NAMES if before[name] != after[name]} == {"server.crt"}
    assert set(after) == NAMES
    assert found.hosts == ("fleet.lan", "192.168.1.10")
    assert found.server_until == NOW + timedelta(days=665)


def test_a_renewal_may_name_other_hosts(folder):
    assert renew_server_certificate(folder, ["new.lan"], NOW, days=365).hosts == ("new.lan",)


def test_a_renewal_makes_a_new_key_where_the_old_one_was_removed(folder):
    old = (folder / "server.key").read_bytes()
    (folder / "server.key").unlink()
    renew_server_certificate(folder, [], NOW, days=365)

    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.crt", folder / "server.key")
    assert (folder / "server.key").read_bytes() != old
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_renewal_beyond_the_ca_is_refused_and_changes_nothing(folder):
    before = contents(folder)

    with pytest.raises(BadInput, match="the CA ends on"):
        renew_server_certificate(folder, [], NOW + timedelta(days=3600), days=365)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda key: key.chmod(0o640), "mode 0640, .*chmod 600"),
        (lambda key: key.unlink(), "ca.key: got no such file; bring the key back"),
        (lambda key: key.write_bytes((key.parent / "server.key").read_bytes()), r"a key that is not that of ca\.crt"),
    ],
    ids=["others can read it", "kept elsewhere", "another key"],
)
def test_a_ca_key_that_is_not_its_own_and_secret_signs_nothing(folder, spoil, words):
    spoil(folder / "ca.key")

    with pytest.raises(BadInput, match=words):
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
def test_what_ends_within_thirty_days_is_told_with_its_cure(folder, days, words):
    lines = list_expiring(inspect_keys(folder), NOW + timedelta(days=days))

    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_a_folder_without_keys_is_told_so(tmp_path):
    with pytest.raises(BadInput, match=r"ca.crt: got no such file; a folder that `fedge fleet keys` made"):
        inspect_keys(tmp_path)


def test_a_file_that_is_no_certificate_is_told_so(folder):
    (folder / "server.crt").write_text("hello", encoding="utf-8")

    with pytest.raises(BadInput, match="no readable certificate"):
        inspect_keys(folder)


def test_the_ca_holds_longer_than_a_long_server_certificate(tmp_path):
    create_keys(tmp_path / "keys", ["a"], NOW, days=5000)
    ca = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())

    assert ca.not_valid_after_utc == NOW + timedelta(days=5000)


@pytest.fixture(scope="module")
def ca() -> Signer:
    return make_ca(new_key(), NOW, days=3650)


def verify(ca: x509.Certificate, server: x509.Certificate, host: str, at: datetime) -> None:
    """As a client does; raises ``VerificationError``."""
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    builder = PolicyBuilder().store(Store([ca])).time(at).max_chain_depth(1)
    builder.build_server_verifier(subject).verify(server, [])


@pytest.mark.parametrize("host", ["fleet.lan", "192.168.1.10", "fd00::1", "localhost", "127.0.0.1", "::1"])
def test_the_server_is_believed_by_each_of_its_names_and_on_loopback(ca, host):
    server = make_server(ca, new_key(), ["fleet.lan", "192.168.1.10", "fd00::1"], NOW, days=365)

    verify(ca.certificate, server, host, NOW + timedelta(days=100))


@pytest.mark.parametrize(
    ("host", "after"),
    [
        *((host, timedelta()) for host in ("other.lan", "192.168.1.11", "sub.fleet.lan")),
        ("fleet.lan", timedelta(days=366)),
        ("fleet.lan", timedelta(hours=-2)),
    ],
)
def test_nobody_believes_the_server_by_another_name_or_outside_its_time(ca, host, after):
    server = make_server(ca, new_key(), ["fleet.lan", "192.168.1.10"], NOW, days=365)

    with pytest.raises(VerificationError):
        verify(ca.certificate, server, host, NOW + after)


def test_a_board_whose_clock_is_half_an_hour_behind_believes_the_server(ca):
    verify(ca.certificate, make_server(ca, new_key(), ["a"], NOW, 365), "localhost", NOW - timedelta(minutes=30))


def test_another_ca_does_not_vouch_for_the_server(ca):
    stranger = make_ca(new_key(), NOW, days=3650)

    with pytest.raises(VerificationError):
        verify(stranger.certificate, make_server(ca, new_key(), ["fleet.lan"], NOW, 365), "fleet.lan", NOW)


def test_the_servers_certificate_signs_nothing(ca):
    key = new_key()
    server = make_server(ca, key, ["fleet.lan"], NOW, 365)
    forged = make_server(Signer(server, key), new_key(), ["other.lan"], NOW, 100)
    builder = PolicyBuilder().store(Store([ca.certificate])).time(NOW)

    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("other.lan")).verify(forged, [server])


def test_keys_are_on_p_384_and_the_ca_signs_servers_only(ca):
    limits = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints)

    assert isinstance(ca.key.curve, ec.SECP384R1)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)


def test_a_certificate_never_outlives_its_ca(ca):
    with pytest.raises(BadInput, match="--days: got 365; at most 100: the CA ends on 2036-11-18"):
        make_server(ca, new_key(), ["a"], ca.certificate.not_valid_after_utc - timedelta(days=100), 365)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:8000",
        "http://a",
        "*.lan",
        "a_b",
        "-a",
        "a-",
        "a..b",
        "10.0.0",
        "10.0.0.256",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "fe80::1%eth0",
        "a b",
        "a/24",
        "x" * 64,
        "nano\n",
    ],
)
def test_what_boards_cannot_dial_is_refused(text):
    with pytest.raises(BadInput, match="--host"):
        parse_host(text)


def test_a_boards_certificate_names_it_and_is_good_for_showing_who_it_is_alone(ca):
    made = make_board(ca, board_request("nano-1"), "nano-1", NOW, days=90)
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    limits = made.extensions.get_extension_for_class(x509.BasicConstraints)

    assert made.subject.rfc4514_string() == "CN=nano-1"
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert limits.critical
    assert limits.value.ca is False
    assert {type(one.value) for one in made.extensions} == {
        x509.SubjectKeyIdentifier,
        x509.BasicConstraints,
        x509.KeyUsage,
        x509.ExtendedKeyUsage,
        x509.AuthorityKeyIdentifier,
    }
    made.verify_directly_issued_by(ca.certificate)


def test_a_boards_certificate_ends_with_its_ca_at_the_latest(ca):
    late = ca.certificate.not_valid_after_utc - timedelta(days=10)

    assert make_board(ca, board_request("nano-1"), "nano-1", late, days=90).not_valid_after_utc == late + timedelta(
        days=10
    )
    with pytest.raises(BadInput, match="a CA that holds"):
        make_board(ca, board_request("nano-1"), "nano-1", late + timedelta(days=11), days=90)


EXTENSIONS: list[x509.ExtensionType] = [
    x509.BasicConstraints(ca=True, path_length=None),
    x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    x509.SubjectAlternativeName([x509.DNSName("fleet.lan")]),
]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        *((board_request("nano-1", wishes=(wish,)), f"a wish for {wish.oid._name}") for wish in EXTENSIONS),
        (board_request("nano-2"), "CN=nano-1 alone"),
        (board_request("nano-1", "nano-2"), "CN=nano-1 alone"),
        (board_request("nano-1", key=rsa.generate_private_key(65537, 1024)), "a key of another kind"),
    ],
)
def test_a_request_that_is_more_or_other_than_the_boards_is_refused(ca, request_, words):
    with pytest.raises(BadInput, match=words):
        make_board(ca, request_, "nano-1", NOW, days=90)


def test_a_request_that_somebody_changed_on_the_way_is_refused(ca):
    made = board_request("nano-1").public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_csr(made.replace(b"nano-1", b"nano-2"))

    with pytest.raises(BadInput, match="not by its own key"):
        make_board(ca, changed, "nano-2", NOW, days=90)


@pytest.mark.parametrize("text", ["", "no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END"])
def test_what_is_no_request_is_refused(text):
    with pytest.raises(BadInput, match="no readable one"):
        parse_request(text)


@given(st.text(max_size=80))
def test_a_name_that_is_none_of_a_boards_gets_no_certificate(ca, name):
    try:
        make_board(ca, board_request("nano-1"), name, NOW, days=90)
    except BadInput:
        return
    assert name == "nano-1"
