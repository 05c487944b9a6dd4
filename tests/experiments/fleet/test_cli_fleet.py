"""``fedge fleet`` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from fedge.errors import BadInput


def fedge(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fleet", *(str(argument) for argument in arguments)])


def test_keys_are_made_once_told_and_renewed(tmp_path: Path) -> None:
    out = tmp_path / "keys"
    made = fedge("keys", "--out", out, "--host", "fleet.lan", "--host", "192.168.1.10")
    again = fedge("keys", "--out", out, "--host", "fleet.lan")
    renewed = fedge("keys", "--out", out, "--renew", "--days", 90)

    assert made.exit_code == renewed.exit_code == 0
    assert made.stdout.endswith("for fleet.lan, 192.168.1.10\n")
    assert isinstance(again.exception, BadInput)


def test_a_check_tells_what_ends_soon_by_its_exit_code(tmp_path: Path) -> None:
    fedge("keys", "--out", tmp_path / "long", "--host", "a")
    fedge("keys", "--out", tmp_path / "short", "--host", "a", "--days", 5)
    fine, soon = (
        fedge("keys", "--out", tmp_path / "long", "--check"),
        fedge("keys", "--out", tmp_path / "short", "--check"),
    )

    assert (fine.exit_code, soon.exit_code) == (0, 1)
    assert fine.stderr == ""
    assert "server.crt ends on" in soon.stderr


def test_a_check_with_something_to_change_is_refused(tmp_path: Path) -> None:
    assert isinstance(fedge("keys", "--out", tmp_path, "--check", "--host", "a").exception, BadInput)


@pytest.mark.parametrize(
    ("command", "word"), [(["proxy"], "upstream fedge_superlink"), (["firewall", "--account", "www-data"], "skuid")]
)
def test_a_configuration_is_printed_or_written_and_written_again(tmp_path: Path, command: list[str], word: str) -> None:
    out = tmp_path / "file"
    printed = fedge(*command)
    written = [fedge(*command, "--out", out) for _ in range(2)]

    assert word in printed.stdout
    assert [result.exit_code for result in written] == [0, 0]
    assert out.read_text(encoding="utf-8") == printed.stdout
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text("events {}", encoding="utf-8")

    assert isinstance(fedge("proxy", "--out", tmp_path / "nginx.conf").exception, BadInput)
    assert (tmp_path / "nginx.conf").read_text(encoding="utf-8") == "events {}"
