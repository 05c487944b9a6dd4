"""Who may read the page: tokens, cookies, host names."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.network_addresses import is_loopback
from server.dashboard.security import (
    Access,
    build_access,
    generate_token,
    parse_host,
    read_or_create_token,
)

TOKEN = "a-token-of-some-length"
ACCESS = build_access("192.168.1.5", 8400, TOKEN)


def test_without_a_token_everybody_who_reaches_it_may_read():
    assert Access().may_read("", "")


def test_the_token_or_the_cookie_for_it_lets_in_and_nothing_else_does():
    assert ACCESS.may_read(f"Bearer {TOKEN}", "")
    assert ACCESS.may_read("", f"x=1; fedge-board-8400={ACCESS.cookie_value}")
    for authorization, cookies in [
        ("", ""),
        (f"Bearer {TOKEN}x", ""),
        (f"Basic {TOKEN}", ""),
        ("Bearer ", ""),
        ("", f"fedge-board-8400={TOKEN}"),
        ("", f"fedge-board-8401={ACCESS.cookie_value}"),
        ("Bearer é", "fedge-board-8400=é"),
    ]:
        assert not ACCESS.may_read(authorization, cookies)


@given(st.text(), st.text())
def test_no_header_whatever_it_holds_lets_in_or_breaks(authorization, cookies):
    assert not ACCESS.may_read(authorization, cookies)


def test_the_cookie_is_not_the_token_and_no_two_tokens_share_one():
    assert TOKEN not in ACCESS.cookie_value
    assert ACCESS.cookie_value != build_access("192.168.1.5", 8400, TOKEN + "x").cookie_value


def test_the_token_is_not_shown_where_the_record_is_printed():
    assert TOKEN not in repr(ACCESS)


@pytest.mark.parametrize("host", ["localhost", "localhost:8400", "127.0.0.1:8400", "[::1]:8400", "127.9.9.9"])
def test_a_page_on_loopback_answers_to_this_machines_names_alone(host):
    access = build_access("127.0.0.1", 8400, None)
    assert access.knows_host(host)
    for foreign in (
        "evil.example",
        "evil.example:8400",
        "192.168.1.5",
        "localhost.evil.example",
        "",
        "127.0.0.1.nip.io",
    ):
        assert not access.knows_host(foreign)


def test_a_page_for_others_answers_to_addresses_and_its_own_names():
    access = build_access("board.lab", 8400, TOKEN, ("page.lab",))
    assert all(access.knows_host(host) for host in ("192.168.1.5:8400", "[fe80::1]", "board.lab:8400", "page.lab"))
    assert not access.knows_host("evil.example")


def test_what_loopback_is():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "192.168.1.5", "lab")] == [
        *[True] * 3,
        *[False] * 4,
    ]
    assert [parse_host(text) for text in ("A.b:1", "[::1]:2", "::1", "x")] == ["a.b", "::1", "::1", "x"]


def test_a_token_file_is_made_for_its_owner_alone_and_then_read(tmp_path):
    path = tmp_path / "token"
    token = read_or_create_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_create_token(path) == token
    assert len(token) >= 40
    assert generate_token() != token


@pytest.mark.parametrize("text", ["", "short", "two words of some length", "täken-of-some-length"])
def test_a_token_that_is_none_is_refused_without_being_repeated(tmp_path, text):
    (tmp_path / "token").write_text(text, encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(BadInput) as refused:
        read_or_create_token(tmp_path / "token")
    assert not text or text not in str(refused.value)


def test_a_token_file_that_cannot_be_made_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot be made"):
        read_or_create_token(tmp_path / "no" / "token")


@pytest.mark.parametrize(("mode", "fits"), [(0o600, True), (0o640, True), (0o644, False), (0o602, False)])
def test_a_token_that_everybody_may_read_is_refused(mode, fits, tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN, encoding="ascii")
    path.chmod(mode)
    if fits:
        assert read_or_create_token(path) == TOKEN
    else:
        with pytest.raises(BadInput, match="chmod o=") as refused:
            read_or_create_token(path)
        assert TOKEN not in str(refused.value)
