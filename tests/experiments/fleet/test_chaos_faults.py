"""Which faults befall which boards when, and the verdicts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli.chaos_command import FAULT_NAMES
from experiments.fleet.chaos_faults import (
    FAULTS,
    BoardFaultOutcome,
    RunProgress,
    check_marks,
    count_outcomes,
    find_cause,
    judge_run,
    list_counts,
    list_outcomes,
    parse_duration_s,
    parse_faults,
    plan_faults,
)
from experiments.fleet.inventory import Inventory, InventoryHost
from experiments.fleet.selected_fleet import FleetOptions, SelectedFleet
from fedge.errors import BadInput

SCRIPT = Path(__file__).resolve().parents[3] / "ansible" / "chaos.sh"
HELD = BoardFaultOutcome(60.0, "nano-1", "kill-worker", back_s=4.0, power_kept=True)
NAMES = st.lists(st.sampled_from([f"board-{number}" for number in range(5)]), min_size=1, unique=True)


@given(NAMES, st.lists(st.sampled_from(list(FAULTS)), min_size=1, unique=True), st.integers(1, 60), st.integers(0, 9))
def test_faults_are_spread_evenly_over_boards_and_kinds(boards, faults, count, seed):
    planned = plan_faults(boards, faults, every_s=30.0, for_s=30.0 * count, seed=seed)
    pairs = Counter((one.board, one.fault) for one in planned)

    assert [one.at_s for one in planned] == [30.0 * (number + 1) for number in range(count)]
    assert max(pairs.values()) - min(pairs.get((b, f), 0) for b in boards for f in faults) <= 1
    assert planned == plan_faults(boards, faults, every_s=30.0, for_s=30.0 * count, seed=seed)


def test_other_seeds_give_other_orders():
    plans = {plan_faults(["a", "b"], list(FAULTS), every_s=1.0, for_s=16.0, seed=seed) for seed in range(5)}

    assert len(plans) == 5


def test_the_boards_script_and_the_help_know_every_fault():
    text = SCRIPT.read_text(encoding="utf-8")

    assert ", ".join(FAULTS) == FAULT_NAMES
    assert [name for name in FAULTS if name not in text] == []


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0)])
def test_a_duration_has_seconds_minutes_or_hours(text, seconds):
    assert parse_duration_s("--for", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "5d", "20 m", "nan"])
def test_another_duration_is_refused_with_its_option(text):
    with pytest.raises(BadInput, match="--for"):
        parse_duration_s("--for", text)


def test_an_unknown_fault_is_refused_with_the_known_ones():
    assert parse_faults("cut-link,kill-worker,cut-link") == ("cut-link", "kill-worker")
    with pytest.raises(BadInput, match=r"reboot.*kill-worker,kill-client"):
        parse_faults("cut-link,reboot")


def make_fleet(limit: frozenset[str], **marks: str) -> SelectedFleet:
    boards = tuple(InventoryHost(name, {"chaos": mark} if mark else {}) for name, mark in marks.items())
    inventory = Inventory(Path("fleet.yml"), InventoryHost("hub", {}), boards)
    return SelectedFleet(FleetOptions(Path("fleet.yml"), Path()), inventory, limit)


def test_only_boards_that_are_marked_for_tests_are_disturbed():
    check_marks(make_fleet(frozenset({"a", "hub"}), a="allowed", b=""))
    with pytest.raises(BadInput, match=r"fleet.yml: got b, c without a mark; `chaos: allowed` among the vars"):
        check_marks(make_fleet(frozenset({"a", "b", "c", "hub"}), a="allowed", b="", c="yes"))


@pytest.mark.parametrize(
    ("progress", "verdict"),
    [
        (RunProgress((10.0, 70.0)), ("went on", True)),
        (RunProgress((10.0,)), ("no round since", False)),
        (RunProgress((10.0,), 0), ("was over", True)),
        (RunProgress((10.0, 70.0), 1, "no board left"), ("went on", True)),
        (RunProgress((10.0,), 1, "no board left"), ("stopped: no board left", True)),
        (RunProgress((10.0,), -9), ("died with -9", False)),
    ],
)
def test_a_run_goes_on_or_says_why_not(progress, verdict):
    assert judge_run(progress, 60.0) == verdict


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["round 3/5 ...\n", "fedge: no board left\n", "run folder: x\n"], "no board left"),
        (["fedge: note: a small thing\n"], ""),
        (["Traceback (most recent call last):\n", "KeyError: 3\n", "fedge: interrupted\n"], ""),
        ([], ""),
    ],
)
def test_the_cause_is_what_the_run_says_at_its_end(lines, cause):
    assert find_cause(lines) == cause


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "held"),
        ({"power_kept": None}, "held"),
        ({"back_s": None}, "failed: the board did not come back"),
        ({"undone": False}, "failed: its undoing failed"),
        ({"run_held": False}, "failed: the run did not go on"),
        ({"power_kept": False}, "failed: another power mode"),
        ({"refusal": "no room", "back_s": None}, "not tried: no room"),
        ({"refusal": "interrupted", "undone": False}, "not tried: interrupted; failed: its undoing failed"),
    ],
)
def test_a_fault_is_held_when_nothing_of_it_is_left(changed, verdict):
    assert replace(HELD, **changed).verdict == verdict


def test_the_tables_have_a_row_per_fault_and_per_kind():
    lost = BoardFaultOutcome(120.0, "nano-1", "kill-worker")
    refused = BoardFaultOutcome(180.0, "nano-1", "cut-link", "no room")

    assert "60 s,nano-1" not in list_outcomes([HELD]).csv
    assert list_outcomes([HELD, lost, refused]).csv.count("\n") == 4
    assert list_counts(count_outcomes([HELD, lost, refused])).csv.splitlines()[1:] == [
        "kill-worker,the trainer and its supervisor are killed,2,1,1"
    ]
