"""An ordinary machine: no modes, and its clocks' governor set and put back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedge.characterisation.machine_control import LinuxMachine
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

PINNED, FOLLOWING = SweepPoint("here", "w"), SweepPoint("here", "w", dvfs=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for cpu in ("cpu0", "cpu1"):
        folder = tmp_path / f"sys/devices/system/cpu/{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text("schedutil\n")
        (folder / "scaling_available_governors").write_text("performance ondemand schedutil\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A  Processor\n")
    return tmp_path


def governors(root: Path) -> set[str]:
    return {file.read_text().strip() for file in root.rglob("scaling_governor")}


def test_a_mode_is_refused_with_what_it_needs() -> None:
    reason = LinuxMachine().refusal_reason(SweepPoint("here", "w", PowerMode(2, 1, 1, 1)))
    assert reason is not None
    assert "no power daemon listens" in reason


def test_clocks_are_pinned_for_a_point_and_then_as_found(root: Path) -> None:
    with LinuxMachine(str(root)).hold(PINNED) as held:
        assert governors(root) == {"performance"}
        assert held.notes == ()
    assert governors(root) == {"schedutil"}


def test_clocks_that_follow_the_load_stay_as_they_are(root: Path) -> None:
    with LinuxMachine(str(root)).hold(FOLLOWING) as held:
        assert governors(root) == {"schedutil"}
        assert held.notes == ()


def test_pinned_clocks_are_let_go_for_a_point_that_wants_them_so(root: Path) -> None:
    for file in root.rglob("scaling_governor"):
        file.write_text("performance\n")
    with LinuxMachine(str(root)).hold(FOLLOWING):
        assert governors(root) == {"schedutil"}
    assert governors(root) == {"performance"}


def test_an_error_puts_the_clocks_back_too(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt), LinuxMachine(str(root)).hold(PINNED):
        raise KeyboardInterrupt
    assert governors(root) == {"schedutil"}


def test_without_the_right_a_plan_that_compares_clocks_is_refused_and_others_noted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, how: False)
    reason = LinuxMachine(str(root), strict=True).refusal_reason(PINNED)
    assert reason is not None
    assert "schedutil and only root may set it to performance" in reason
    assert LinuxMachine(str(root)).refusal_reason(PINNED) is None
    with LinuxMachine(str(root)).hold(PINNED) as held:
        assert governors(root) == {"schedutil"}
        assert "clocks are as found" in held.notes[0]


def test_a_machine_without_a_governor_says_so(tmp_path: Path) -> None:
    reason = LinuxMachine(str(tmp_path), strict=True).refusal_reason(FOLLOWING)
    assert reason is not None
    assert "shows no clock governor" in reason


def test_the_processor_is_named(root: Path) -> None:
    assert LinuxMachine(str(root)).title == f"A Processor, {os.cpu_count()} cores"
