"""``fedge study mode-choice`` takes the published steps, plays every policy, ratio and seed, refuses in one line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.boards import grid, write_table

from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import TABLE_COLUMNS
from fedge.errors import BadInput, FedgeError
from fedge.modes import stack_modes
from fedge.studies.mode_choice_study import ModeChoiceOptions, build_mode_choice_study, find_steps, list_board_notes
from fedge.types import PowerMode, ProfileTable


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "my-board" / "train" / "net.csv", rows=slice(None, None, 3))


@pytest.mark.parametrize(
    ("device", "workload", "steps"),
    [
        ("agx-xavier", "vit-b16-cifar10", 200),
        ("agx-xavier", "resnet50-tinyimagenet224", 180),
        ("agx-xavier", "lstm-imdb", 160),
        ("agx-xavier", "something", 200),
        ("tx2", "vit-b16-CIFAR10", 75),
        ("tx2", "resnet50-imagenet", 60),
        ("tx2", "lstm-imdb", 80),
        ("agx-orin", "resnet18-imagenet", 200),
        ("my-board", "vit-b16-cifar10", 200),
    ],
)
def test_a_round_has_the_published_steps_of_board_and_data_set(device, workload, steps):
    knobs = grid()
    ones = np.ones(len(knobs))

    assert find_steps(ProfileTable(device, workload, 16, knobs, ones, ones, "0" * 64, "t.csv")) == steps


def test_a_board_of_another_name_or_with_other_clocks_is_noted():
    spec = load_catalogue()["tx2"]
    modes = stack_modes([PowerMode(spec.cores[-1], spec.cpu_mhz[-1], mhz, spec.mem_mhz[-1]) for mhz in spec.gpu_mhz])
    ones = np.ones(len(modes))
    own = ProfileTable("tx2", "net", 16, modes, ones, ones, "0" * 64, "t.csv")

    (unknown,) = list_board_notes(replace(own, device="downloads"), None)
    (other,) = list_board_notes(replace(own, device="orin-nano"), "orin-nano")

    assert list_board_notes(own, None) == ()
    assert "downloads (taken from the table's folder, --board names another) is no board of the catalogue" in unknown
    assert "GPU clocks" in other
    assert "not those of orin-nano (named by --board)" in other


def test_every_policy_is_played_at_every_ratio_with_seeds_from_one(table):
    jobs = build_mode_choice_study(ModeChoiceOptions(table, (1.5, 4.0), 7, "fedge,maxn", 2)).jobs

    assert [str(job) for job in jobs[:3]] == [
        "fedge, ratio 1.5, seed 1",
        "fedge, ratio 1.5, seed 2",
        "fedge, ratio 4, seed 1",
    ]
    assert len(jobs) == 8
    assert {(job.rounds, job.steps) for job in jobs} == {(7, 200)}
    assert build_mode_choice_study(ModeChoiceOptions(table, steps=9)).steps == 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deadline_ratios": (0.5,)}, "--deadline-ratio: got 0.5; a finite number of at least 1"),
        ({"deadline_ratios": (float("nan"),)}, "--deadline-ratio: got nan"),
        ({"deadline_ratios": (2.0, 2.0)}, "each ratio once"),
        ({"policies": "fedge,"}, "--policies: got 'fedge,'"),
        ({"policies": "lucky"}, "'lucky'"),
        ({"table": Path("gone.csv")}, "gone.csv: got no such file"),
        ({"batch_size": 64}, "batch size: got 64; known: 16"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(table, change, words):
    with pytest.raises(BadInput) as caught:
        build_mode_choice_study(replace(ModeChoiceOptions(table), **change))

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_of_one_mode_leaves_nothing_to_choose(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(",".join(TABLE_COLUMNS) + "\n4,1479000,921600000,1600000000,16,100,9\n", encoding="utf-8")

    with pytest.raises(FedgeError, match="nothing to choose"):
        build_mode_choice_study(ModeChoiceOptions(path))


def test_the_help_names_all_policies(fedge):
    from fedge.studies.mode_choice_study import POLICIES

    told = fedge("study", "mode-choice", "--help").out

    assert [name for name in POLICIES if name not in told.replace("mode-choice", "")] == []


def test_the_rows_have_the_published_keys_and_the_oracle_has_no_regret(fedge, one_core, table, tmp_path):
    out, page = tmp_path / "rows.json", tmp_path / "page.html"
    options = ("--policies", "oracle,maxn", "--deadline-ratio", "3", "--rounds", "12", "--seeds", "2", "--steps", "30")

    outcome = fedge("study", "mode-choice", "--table", table, *options, "--out", out, "--html", page)

    assert outcome.code == 0, outcome.err
    rows = json.loads(out.read_text(encoding="utf-8"))
    keys = ("policy", "ratio", "seed", "regret_pct", "regret_after10_pct", "energy_saved_pct", "deadlines_missed")
    assert [tuple(row) for row in rows] == [(*keys, "modes_explored")] * 4
    assert [(row["policy"], row["ratio"], row["seed"]) for row in rows] == [
        ("oracle", 3.0, 1), ("oracle", 3.0, 2), ("maxn", 3.0, 1), ("maxn", 3.0, 2),
    ]  # fmt: skip
    for oracle, maxn in zip(rows[:2], rows[2:], strict=True):
        assert abs(oracle["regret_pct"]) < 2.0
        assert maxn["regret_pct"] > oracle["regret_pct"]
        assert oracle["energy_saved_pct"] > 0.0
        assert maxn["energy_saved_pct"] == pytest.approx(0.0, abs=2.0)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html")
