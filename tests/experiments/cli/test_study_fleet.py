"""``fedge study fleet`` plays every policy with every seed, writes plain rows, and says in one line what is wrong."""

import json
from pathlib import Path

import pytest

from experiments.backends.study_backend import FleetStudyOptions, build_fleet_study, build_policy
from experiments.cli.command_output import Outputs
from experiments.cli.study_commands import study_fleet
from fedge.decisions.planning import JOINT_POLICY
from fedge.decisions.policies import POLICIES
from fedge.errors import BadInput
from fedge.experiment import PolicySpec

FLEET = """\
name: small
fleet:
  - {device: nano}
  - {device: agx-orin-64gb, cost: vit-b16-cifar10, count: 2}
workload: {task: cifar10-resnet18}
exploration: {modes: 3}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, encoding="utf-8")
    return path


def test_every_policy_is_played_with_every_seed_and_the_same_shares(config):
    jobs = build_fleet_study(FleetStudyOptions(config, "balanced, maxn", rounds=3, seeds=2, steps=5)).jobs

    assert [str(job) for job in jobs] == ["balanced, seed 1", "balanced, seed 2", "maxn, seed 1", "maxn, seed 2"]
    assert {job.experiment.rounds for job in jobs} == {3}
    assert {job.experiment.workload.task for job in jobs} == {"none"}, "no data is needed"


def test_a_policy_gets_the_files_numbers_that_it_takes():
    own = PolicySpec(name="balanced", time_weight=0.3, max_slowdown=1.2)

    assert build_policy("balanced", own) == own
    assert build_policy("maxn", own) == PolicySpec(name="maxn")
    assert build_policy("preset:MAXN", own) == PolicySpec(name="preset:MAXN")
    assert build_policy("mine:policy", own).time_weight == 0.3


@pytest.mark.parametrize("asked", [{"policies": "balanced,maxn"}, {"overrides": ("policy.name=maxn",)}])
def test_options_that_another_policy_does_not_take_are_named(config, asked):
    with config.open("a", encoding="utf-8") as file:
        file.write("policy: {name: balanced, max_slowdown: 1.3}\n")
    notes: list[str] = []
    build_fleet_study(FleetStudyOptions(config, **asked), notes.append)

    assert notes == ["max_slowdown of the file's policy balanced left out: maxn takes no such option"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"policies": "balanced,,maxn"}, "--policies: got 'balanced,,maxn'"),
        ({"policies": "maxn,maxn"}, "each once"),
        ({"policies": "lucky"}, "--policies: got 'lucky'; known: "),
        ({"policies": "maxn,joint"}, "--policies: got 'joint'; a policy that sets power modes"),
        ({"policies": "fastest-within-power"}, "power_w: got nothing; fastest-within-power needs it"),
        ({"overrides": ("strategy.name=FedBuff",)}, "strategy.name: got 'FedBuff'; a strategy of rounds"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(config, asked, words):
    with pytest.raises(BadInput) as caught:
        build_fleet_study(FleetStudyOptions(config, **asked))

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_fleets_are_played_in_columns_unless_asked_otherwise(config):
    def engine_of(count: int, engine: str | None = None, *more: str) -> str:
        overrides = (f"fleet.1.count={count}", *more)
        return build_fleet_study(FleetStudyOptions(config, overrides=overrides, engine=engine)).jobs[0].engine

    assert [engine_of(998), engine_of(999), engine_of(999_999)] == ["coordinator", "columns", "columns"]
    assert [engine_of(2, "columns"), engine_of(999, "coordinator")] == ["columns", "coordinator"]
    assert engine_of(1998, None, "late.action=discount") == "coordinator"
    with pytest.raises(BadInput, match="columns do not play this"):
        engine_of(1999, None, "late.action=discount")


@pytest.mark.parametrize(
    ("count", "asked", "said"),
    [
        (
            899,
            {},
            ["balanced: 900 boards take about 45 min here; `--engine columns` simulates such fleets in seconds"],
        ),
        (999, {"engine": "coordinator"}, []),
        (999, {"overrides": ("late.action=discount",)}, []),
        (9, {}, []),
    ],
)
def test_a_study_of_many_minutes_names_the_faster_engine_where_it_plays_the_file(config, count, asked, said):
    overrides = (f"fleet.1.count={count}", *asked.pop("overrides", ()))
    notes: list[str] = []
    build_fleet_study(FleetStudyOptions(config, rounds=100, overrides=overrides, **asked), notes.append)

    assert notes == said


@pytest.mark.parametrize(
    ("overrides", "engine", "words"),
    [
        ((), "rows", "--engine: got 'rows'; one of coordinator, columns"),
        (("policy=fastest", "policy.fleet_power_w=100"), "columns", "--policies: got 'fastest'; one of balanced"),
        (("selection={name: random, count: 9}",), "columns", "selection.count: got 9; from 1 to 3"),
        (("fleet.0.bogus=1",), "columns", "fleet[0].bogus: got an unknown key"),
        (("fleet.0.cost=digits",), "columns", "fleet[0].cost: got 'digits'; known: "),
    ],
)
def test_what_columns_do_not_play_is_said_before_playing(config, overrides, engine, words):
    with pytest.raises(BadInput) as caught:
        build_fleet_study(FleetStudyOptions(config, overrides=overrides, engine=engine))

    assert words in str(caught.value)


def test_a_deadline_is_not_judged_by_the_work_of_a_smaller_fleet(config):
    deadline = ("policy=least-energy-within-deadline", "policy.deadline_s=28", "fleet.1.count=5000")

    assert build_fleet_study(FleetStudyOptions(config, overrides=deadline, steps=5)).jobs[0].engine == "columns"


def test_terminal_rows_and_page_say_which_engine_played(fedge, config, tmp_path):
    rows, page = tmp_path / "rows.json", tmp_path / "page.html"
    fleet = ("--engine", "columns", "--set", "fleet.1.count=300", "--rounds", 2)

    outcome = fedge("study", "fleet", config, *fleet, "--out", rows, "--html", page)

    assert outcome.code == 0, outcome.err
    assert "Engine: columns. Boards of a kind share one posterior" in " ".join(outcome.out.split())
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["engine"], row["deadlines"]) == ("columns", 602)
    written = page.read_text(encoding="utf-8")
    assert "Boards of a kind share one posterior" in written
    assert "301 boards" in written
    assert "Energy of every entry of the fleet" in written


def test_the_help_names_all_policies_that_the_study_can_play(fedge):
    told = "".join(fedge("study", "fleet", "--help").out.split())  # names may be broken at the line's end

    assert "\\" not in told
    assert [name for name in POLICIES if name not in told] == [JOINT_POLICY]


@pytest.mark.slow
def test_watts_that_no_board_can_keep_are_told_and_give_no_gap(fedge, config, tmp_path):
    rows = tmp_path / "rows.json"
    limit = ("--policies", "fastest", "--set", "policy.fleet_power_w=5")

    outcome = fedge("study", "fleet", config, *limit, "--rounds", 2, "--steps", 20, "--out", rows)

    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["limits_out_of_reach"], row["objective_gap_pct"], row["saving_share_pct"]) == (2, None, None)
    assert "fastest: in 2 of 2 rounds even the oracle exceeds the limits" in " ".join(outcome.out.split())


@pytest.mark.long
def test_a_small_fleet_comes_near_the_oracle_and_its_rows_repeat(fedge, config, tmp_path):
    files = [tmp_path / name for name in ("one.json", "two.json")]
    command = ("study", "fleet", config, "--policies", "balanced,maxn", "--rounds", 11, "--steps", 40)
    for file in files:
        outcome = fedge(*map(str, command), "--out", file, "--html", tmp_path / "page.html")
        assert outcome.code == 0, outcome.err

    balanced, maxn = json.loads(files[0].read_text(encoding="utf-8"))
    assert (balanced["policy"], maxn["policy"], maxn["rounds"]) == ("balanced", "maxn", 11)
    assert balanced["energy_j_settled"] < maxn["energy_j_settled"]
    assert 0.0 <= balanced["objective_gap_pct_settled"] < 15.0
    assert maxn["objective_gap_pct"] is None
    assert maxn["energy_j"] == pytest.approx(maxn["maxn_energy_j"])
    assert maxn["round_s"] == pytest.approx(maxn["maxn_round_s"])
    assert balanced["maxn_energy_j"] == pytest.approx(maxn["maxn_energy_j"]), "the same boards and shares"
    assert files[0].read_text(encoding="utf-8") == files[1].read_text(encoding="utf-8")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html")


def test_a_page_that_cannot_be_written_is_said_before_playing(config, tmp_path):
    with pytest.raises(BadInput, match="--html"):
        study_fleet(FleetStudyOptions(config), Outputs(False, tmp_path / "same", tmp_path / "same"))
