"""What the fleet's certificates say, read back as a board's TLS library reads them."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from contracts.board_requests import board_request
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from experiments.fleet.key_folder import (
    Signer,
    list_certificate_hosts,
    make_board,
    make_ca,
    make_server,
    new_key,
    parse_host,
    parse_request,
)
from fedge.errors import BadInput

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


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
def test_the_server_is_believed_by_each_of_its_names_and_on_loopback(ca: Signer, host: str) -> None:
    server = make_server(ca, new_key(), ["fleet.lan", "192.168.1.10", "fd00::1"], NOW, days=365)

    verify(ca.certificate, server, host, NOW + timedelta(days=100))


@pytest.mark.parametrize("host", ["other.lan", "192.168.1.11", "sub.fleet.lan"])
def test_the_server_is_not_believed_by_another_name(ca: Signer, host: str) -> None:
    server = make_server(ca, new_key(), ["fleet.lan", "192.168.1.10"], NOW, days=365)

    with pytest.raises(VerificationError):
        verify(ca.certificate, server, host, NOW)


@pytest.mark.parametrize("after", [timedelta(days=366), timedelta(hours=-2)])
def test_a_certificate_does_not_hold_outside_its_time(ca: Signer, after: timedelta) -> None:
    server = make_server(ca, new_key(), ["fleet.lan"], NOW, days=365)

    with pytest.raises(VerificationError):
        verify(ca.certificate, server, "fleet.lan", NOW + after)


def test_a_board_whose_clock_is_half_an_hour_behind_believes_the_server(ca: Signer) -> None:
    verify(ca.certificate, make_server(ca, new_key(), ["a"], NOW, 365), "localhost", NOW - timedelta(minutes=30))


def test_another_ca_does_not_vouch_for_the_server(ca: Signer) -> None:
    stranger = make_ca(new_key(), NOW, days=3650)

    with pytest.raises(VerificationError):
        verify(stranger.certificate, make_server(ca, new_key(), ["fleet.lan"], NOW, 365), "fleet.lan", NOW)


def test_the_servers_certificate_signs_nothing(ca: Signer) -> None:
    key = new_key()
    server = make_server(ca, key, ["fleet.lan"], NOW, 365)
    forged = make_server(Signer(server, key), new_key(), ["other.lan"], NOW, 100)
    builder = PolicyBuilder().store(Store([ca.certificate])).time(NOW)

    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("other.lan")).verify(forged, [server])


def test_keys_are_on_p_384_and_the_ca_signs_servers_only(ca: Signer) -> None:
    limits = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints)

    assert isinstance(ca.key.curve, ec.SECP384R1)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)


def test_a_certificate_never_outlives_its_ca(ca: Signer) -> None:
    with pytest.raises(BadInput, match="--days: got 365; at most 100: the CA ends on 2036-11-18"):
        make_server(ca, new_key(), ["a"], ca.certificate.not_valid_after_utc - timedelta(days=100), 365)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:8000", "http://a", "*.lan", "a_b", "-a", "a-", "a..b", "10.0.0", "10.0.0.256", "0.0.0.0", "::"),
        *("224.0.0.1", "fe80::1%eth0", "a b", "a/24", "x" * 64, "nano\n"),
    ],
)
def test_what_boards_cannot_dial_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--host"):
        parse_host(text)


LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
    st.ip_addresses().filter(lambda ip: not (ip.is_unspecified or ip.is_multicast)).map(str),
)


@given(st.lists(HOSTS, max_size=4, unique=True))
def test_a_certificate_tells_the_hosts_it_was_made_for(hosts: list[str]) -> None:
    ca = make_ca(new_key(), NOW, days=3650)
    told = list_certificate_hosts(make_server(ca, new_key(), hosts, NOW, 365))

    assert told == tuple(str(parse_host(host)) for host in hosts if host not in {"localhost", "127.0.0.1", "::1"})


def test_a_boards_certificate_names_it_and_is_good_for_showing_who_it_is_alone(ca: Signer) -> None:
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


def test_a_boards_certificate_is_no_servers(ca: Signer) -> None:
    with pytest.raises(VerificationError):
        verify(ca.certificate, make_board(ca, board_request("fleet.lan"), "fleet.lan", NOW, days=90), "fleet.lan", NOW)


def test_a_boards_certificate_ends_with_its_ca_at_the_latest(ca: Signer) -> None:
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


@pytest.mark.parametrize("wish", EXTENSIONS, ids=lambda wish: wish.oid._name)
def test_a_request_that_wishes_to_be_more_than_a_board_is_refused(ca: Signer, wish: x509.ExtensionType) -> None:
    with pytest.raises(BadInput, match=f"a wish for {wish.oid._name}"):
        make_board(ca, board_request("nano-1", wishes=(wish,)), "nano-1", NOW, days=90)


@pytest.mark.parametrize("names", [("nano-2",), ("nano-1", "nano-2")])
def test_a_request_in_another_name_or_in_more_than_the_boards_is_refused(ca: Signer, names: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="CN=nano-1 alone"):
        make_board(ca, board_request(*names), "nano-1", NOW, days=90)


def test_a_request_that_somebody_changed_on_the_way_is_refused(ca: Signer) -> None:
    made = board_request("nano-1").public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_csr(made.replace(b"nano-1", b"nano-2"))

    with pytest.raises(BadInput, match="not by its own key"):
        make_board(ca, changed, "nano-2", NOW, days=90)


def test_a_request_with_a_weak_key_is_refused(ca: Signer) -> None:
    weak = board_request("nano-1", key=rsa.generate_private_key(65537, 1024))

    with pytest.raises(BadInput, match="a key of another kind"):
        make_board(ca, weak, "nano-1", NOW, days=90)


@pytest.mark.parametrize("text", ["", "no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END"])
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="no readable one"):
        parse_request(text)


@given(st.text(max_size=80))
def test_a_name_that_is_none_of_a_boards_gets_no_certificate(ca: Signer, name: str) -> None:
    try:
        make_board(ca, board_request("nano-1"), name, NOW, days=90)
    except BadInput:
        return
    assert name == "nano-1"
