"""A board's key and its request: made once, kept, and asked for anew exactly when the certificate does not hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from contracts.programs import load_program

from experiments.fleet.key_folder import Signer, encode_certificate, make_board, make_ca, new_key, parse_request

PROGRAM = Path(__file__).resolve().parents[2] / "ansible" / "roles" / "telemetry" / "files" / "request.py"


program = load_program(PROGRAM)


@pytest.fixture
def ca(tmp_path: Path) -> Signer:
    made = make_ca(new_key(), datetime.now(UTC), days=400)
    (tmp_path / "ca.crt").write_bytes(encode_certificate(made.certificate))
    return made


@pytest.fixture
def asked(tmp_path: Path, ca: Signer, capsys: pytest.CaptureFixture[str]):
    def ask(*more: str, board: str = "nano-1") -> dict:
        assert program.main([board, f"--folder={tmp_path}", f"--ca={tmp_path / 'ca.crt'}", *more]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def sign(folder: Path, ca: Signer, text: str, days: int = 90, ago: timedelta = timedelta()) -> None:
    now = datetime.now(UTC) - ago
    (folder / "board.crt").write_bytes(encode_certificate(make_board(ca, parse_request(text), "nano-1", now, days)))


def test_what_it_asks_for_is_what_the_ca_gives_and_then_it_asks_no_more(tmp_path, ca, asked):
    first = asked()
    sign(tmp_path, ca, first["request"])

    assert first["made"]
    assert first["why"] == "there is none"
    assert asked() == {"made": False, "why": None, "request": None}


def test_the_key_is_for_its_owner_alone_and_stays(tmp_path, asked):
    asked()
    key = (tmp_path / "board.key").read_bytes()
    again = asked()

    assert (tmp_path / "board.key").stat().st_mode & 0o777 == 0o400
    assert b"PRIVATE KEY" in key
    assert (tmp_path / "board.key").read_bytes() == key
    assert not again["made"]
    assert "PRIVATE" not in str(again)


def test_a_key_that_is_broken_is_made_anew(tmp_path, asked):
    (tmp_path / "board.key").write_text("half a ke", encoding="utf-8")

    assert asked()["made"]
    assert not asked()["made"]


def test_in_check_mode_nothing_is_made(tmp_path, asked):
    assert asked("--check") == {"made": True, "why": "there is none", "request": None}
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt"}


@pytest.mark.parametrize(("ago_days", "wanted"), [(0, False), (59, False), (61, True), (95, True)])
def test_a_new_one_is_wanted_when_less_than_a_third_of_its_time_is_left(tmp_path, ca, asked, ago_days, wanted):
    sign(tmp_path, ca, asked()["request"], days=90, ago=timedelta(days=ago_days))
    again = asked()

    assert (again["request"] is not None) == wanted
    assert not wanted or again["why"].startswith("the present one ends on 20")


def test_a_certificate_by_another_ca_or_for_another_key_or_name_does_not_hold(tmp_path, ca, asked):
    text = asked()["request"]
    sign(tmp_path, make_ca(new_key(), datetime.now(UTC), days=400), text)
    assert asked()["why"] == "the present one is not of this CA"

    # Of a CA's name, and not by its key.
    sign(tmp_path, Signer(ca.certificate, new_key()), text)
    assert asked()["why"] == "the present one is not of this CA"

    sign(tmp_path, ca, text)
    assert asked(board="nano-2")["why"] == "the present one has another name"

    (tmp_path / "board.key").unlink()
    assert asked()["why"] == "the present one is for another key"

    (tmp_path / "board.crt").write_text("rubbish", encoding="utf-8")
    assert asked()["why"] == "the present one is not of this CA"
