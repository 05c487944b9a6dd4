"""``fedge board``: what it takes for a run, an address or settings, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.commands.board import Asked, address, board, read_settings, run_at
from fedge.errors import BadInput


def test_an_address_may_carry_its_token() -> None:
    assert address("http://box:8400/#token=abc") == ("http://box:8400", "abc")
    assert address("https://box/board/") == ("https://box/board", None)


@pytest.mark.parametrize("text", ["ftp://box", "http://", "http://me:secret@box", "http://box?x=1", "file:///etc"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        address(text)


def test_a_wrong_address_does_not_tell_its_token() -> None:
    with pytest.raises(BadInput) as refused:
        address("ftp://box#token=geheim")
    assert "geheim" not in str(refused.value)


def test_a_run_may_be_there_or_come(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_at(run) == run
    run.mkdir()
    assert run_at(run) == run
    (run / "other").touch()
    with pytest.raises(BadInput, match="other things"):
        run_at(run)
    (run / "run.yaml").touch()
    assert run_at(run) == run
    with pytest.raises(BadInput, match="not a file"):
        run_at(run / "run.yaml")
    with pytest.raises(BadInput, match="does not exist"):
        run_at(tmp_path / "no" / "run")


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(BadInput, match="RUN_OR_ADDRESS"):
        board(Asked(None))


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text("store: /var/lib/fedge/fleet\nruns: /srv/runs\nport: 9000\n", encoding="utf-8")
    settings = read_settings(path)
    assert (settings.store, settings.runs, settings.port) == (Path("/var/lib/fedge/fleet"), Path("/srv/runs"), 9000)
    assert settings.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "without settings"),
        ("runs: x", "store: got nothing"),
        ("store: x\nport: 0", "port: got 0"),
        ("store: x\nhost_name: y", "host_name"),
        ("store: [", "unreadable"),
        ("- store", "without settings"),
    ],
)
def test_wrong_settings_are_one_line_that_names_the_field(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=where) as refused:
        read_settings(path)
    assert "\n" not in str(refused.value)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_settings(tmp_path / "none.yaml")
