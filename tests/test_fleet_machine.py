"""Tests on test hosts run or fail: what a machine lacks for them is installed first, and in CI a skip is no pass."""

import re
import shutil
import subprocess

import pytest
from fleet import base


def test_what_a_machine_lacks_is_installed_before_any_test_is_left_out(monkeypatch):
    commands = []
    monkeypatch.setattr(base.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        shutil, "which", lambda program, **_: None if program == "systemd-nspawn" else f"/bin/{program}"
    )
    monkeypatch.setattr(
        base, "_run", lambda command, *_: commands.append(command) or subprocess.CompletedProcess(command, 0, "", "")
    )

    base.ready_machine()

    assert [(command[1], command[-1]) for command in commands] == [("update", "-q"), ("install", "systemd-container")]


def test_no_mark_leaves_a_test_on_hosts_out_for_a_program_that_would_be_installed(project_root):
    assert [path.name for path in (project_root / "tests/fleet").glob("*.py") if "skipif" in path.read_text()] == []


@pytest.mark.parametrize(
    ("reason", "code"), [("test hosts need root", 0), ("systemd-nspawn: missing", 1), ("unconditional skip", 1)]
)
def test_ci_fails_for_a_test_that_was_skipped_for_a_reason_that_it_does_not_list(project_root, tmp_path, reason, code):
    function = re.search(r"^FLEET_MAY_SKIP=.*?^}", (project_root / ".ci/run").read_text(), re.MULTILINE | re.DOTALL)
    said = tmp_path / "said"
    said.write_text(f"tests/fleet/x.py s\nSKIPPED [3] tests/fleet/x.py:4: {reason}\n")

    assert subprocess.run(["bash", "-c", f"{function[0]}\nrefuse_skips {said}"], check=False).returncode == code
