"""``fedge concurrent plan`` says which mode and batch sizes, why, what was played, and what would hold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.jobs import write_tables

from experiments.cli.concurrent_commands import print_plan
from fedge.costs.table_calibration import build_planning_modes
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.studies.serving.interleaving_advice import ConcurrentPlanOptions, advise_interleaving
from fedge.studies.serving.job_tables import ConcurrentJobOptions


@pytest.fixture
def asked(tmp_path: Path) -> ConcurrentPlanOptions:
    train, infer = write_tables(tmp_path)
    return ConcurrentPlanOptions(
        ConcurrentJobOptions(train_table=train, infer_tables=(infer,), max_latency_s=(0.5,), rate_hz=(60.0,)),
        28.0,
        strategy="gmd",
    )


def shown(asked: ConcurrentPlanOptions, capsys: pytest.CaptureFixture[str]) -> str:
    print_plan(asked, as_json=False)
    return " ".join(capsys.readouterr().out.split())


def data(asked: ConcurrentPlanOptions, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    print_plan(asked, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_the_plan_names_mode_batch_window_limits_and_what_is_measured(asked, capsys):
    text = shown(asked, capsys)
    for words in (
        "Mode ",
        "served: batches of ",
        "steps per window of ",
        "W of 28 W",
        "Limited by the power budget",
        "with even arrivals",
        "0.00 % of ",
        "Alternatives",
        "Choices under other limits",
        "gmd would profile ",
        "measured: ",
        "Time and power were measured",
    ):
        assert words in text


def test_json_has_the_choice_its_neighbours_and_the_search(asked, capsys):
    found = data(asked, capsys)
    assert found["feasible"]
    assert found["label"] == "measured"
    choice = found["choice"]
    assert choice["power_w"] <= 28.0
    assert choice["latency_s"][0] <= 0.5
    assert choice["steps_per_s"] == pytest.approx(choice["steps"] / choice["window_s"])
    assert {one["limit"] for one in found["neighbours"]} == {"power", "latency", "rate"}
    assert found["strategy"]["modes"] == len(found["strategy"]["trials"])
    assert found["played"]["holds"]
    assert found["would_hold"] == []


def test_arrivals_of_every_kind_are_played(asked, capsys):
    for kind in ("poisson", "bursts", "dynamic"):
        played = data(replace(asked, arrivals=kind, strategy="none"), capsys)["played"]
        assert played["services"][0]["requests"] > 1000
        assert played["holds"] == (played["services"][0]["violations"] <= 1.0)


def test_where_nothing_holds_the_nearest_limit_is_told(asked, capsys):
    text = shown(replace(asked, max_power_w=14.0), capsys)
    assert "None No mode meets all limits. Nearest the power budget: 14 -> " in text
    found = data(replace(asked, max_power_w=14.0), capsys)
    assert (found["feasible"], found["choice"]) == (False, None)
    eased = replace(asked, max_power_w=found["would_hold"][0]["needed"] + 1e-6)
    assert advise_interleaving(eased).choice is not None


def test_a_row_that_no_board_can_have_meant_is_told(asked, capsys):
    assert "DOUBTFUL" not in shown(replace(asked, max_power_w=60.0), capsys)
    rows = asked.jobs.infer_tables[0].read_text(encoding="utf-8").splitlines()
    # The top mode: as if inference drew next to nothing there.
    odd = [
        ",".join([*row.split(",")[:6], "9.0"]) if row.startswith("12,2.2e+06,1300000000,32") else row for row in rows
    ]
    asked.jobs.infer_tables[0].write_text("\n".join(odd), encoding="utf-8")
    text = shown(replace(asked, max_power_w=60.0), capsys)
    assert "DOUBTFUL served at batch size " in text
    assert "and 9.0 W are far off its other modes: measure this mode again" in text
    assert data(replace(asked, max_power_w=60.0), capsys)["doubtful"]


def test_no_figure_is_cut_in_a_narrow_terminal(asked, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_plan(asked, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert not any("…" in line for line in lines)
    assert sum(line.startswith(("limit: power ", "limit: latency ", "limit: rate ")) for line in lines) == 12


def test_training_alone_has_no_column_of_batches(asked, capsys):
    jobs = replace(asked.jobs, infer_tables=(), max_latency_s=(), rate_hz=())
    text = shown(replace(asked, jobs=jobs), capsys)
    assert "limit per s mode, MHz" in text
    assert "window" not in text.split("Time and power")[0]


def test_a_long_search_is_told_in_part(asked, capsys):
    text = shown(replace(asked, strategy="oracle"), capsys)
    assert "more (--json has all)" in text
    assert len(data(replace(asked, strategy="oracle"), capsys)["strategy"]["trials"]) > 30


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ({"infer_batch_sizes": "1"}, ["Train none: serving leaves "]),
        ({"rate_hz": (0.1,)}, ["requests arrive 10 s apart, which is at least the budget", "times)"]),
    ],
)
def test_why_little_is_trained_or_held_is_told(asked, capsys, jobs, told):
    text = shown(replace(asked, jobs=replace(asked.jobs, **jobs), strategy="none"), capsys)
    assert [words for words in told if words not in text] == []


def test_two_services_of_one_table_have_names_of_their_own(asked, capsys):
    two = replace(asked.jobs, infer_tables=asked.jobs.infer_tables * 2, max_latency_s=(0.5, 1.0), rate_hz=(30.0, 10.0))
    text = shown(replace(asked, jobs=two, arrivals="poisson"), capsys)
    assert "served: batches of " in text
    assert "served #2: batches of " in text
    assert "per longest window of " in text
    assert "Strategies search for one service" in text


def test_costs_of_a_board_are_said_to_be_modelled(capsys):
    names = ConcurrentJobOptions(
        board="agx-orin",
        train_workload="resnet18-imagenet",
        infer_workloads=("mobilenetv3l-gld23k",),
        max_latency_s=(0.8,),
        rate_hz=(60.0,),
        infer_batch_sizes="4,16,32",
    )
    text = shown(ConcurrentPlanOptions(names, 30.0, strategy="gmd"), capsys)
    assert "calibrated: training of resnet18-imagenet" in text
    assert "calibrated: inference of mobilenetv3l-gld23k in batches of 4, 16, 32" in text
    assert "come from a model (calibrated)" in text
    estimated = shown(ConcurrentPlanOptions(replace(names, board="orin-nx-16gb"), 20.0, strategy="none"), capsys)
    assert "estimated: inference of mobilenetv3l-gld23k" in estimated


@pytest.mark.parametrize("name", sorted(load_catalogue()))
def test_a_boards_modes_are_some_hundreds_with_the_top_one_among_them(name):
    spec = load_catalogue()[name]
    modes = build_planning_modes(spec)
    assert 100 < len(modes) <= 4 * 7 * 7 * 3
    assert spec.maxn in list(modes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_power_w": -1.0}, "--max-power-w: got -1"),
        ({"max_power_w": float("nan")}, "--max-power-w"),
        ({"arrivals": "rarely"}, "--arrivals: got 'rarely'; one of constant"),
        ({"strategy": "lucky"}, "--strategy: got 'lucky'; known: "),
        ({"jobs": {"max_latency_s": ()}}, "--max-latency-s: got no value, and 1 inference job; one value for each"),
        ({"jobs": {"rate_hz": (1.0, 2.0)}}, "--rate-hz: got 2 values, and 1 inference job"),
        ({"jobs": {"rate_hz": (0.0,)}}, "--rate-hz: got 0; a number above 0"),
        ({"jobs": {"infer_batch_sizes": "4,x"}}, "--infer-batch-sizes: got '4,x'"),
        ({"jobs": {"infer_batch_sizes": "5"}}, "--infer-batch-sizes: got 5; of "),
        ({"jobs": {"train_workload": "net"}}, "names beside tables"),
        ({"jobs": {"train_table": None, "infer_tables": ()}}, "got no table and no workload"),
        (
            {"jobs": {"train_table": None, "infer_tables": (), "train_workload": "resnet18-imagenet"}},
            "workloads without a board",
        ),
        (
            {"jobs": {"train_table": None, "infer_tables": (), "board": "agx-orin", "infer_workloads": ("nets:lstm",)}},
            "--infer-workload: got 'nets:lstm'; a file with its layers, from `fedge layers nets:lstm --input",
        ),
        (
            {
                "jobs": {
                    "train_table": None,
                    "infer_tables": (),
                    "board": "agx-orin",
                    "infer_workloads": ("resnet50-imagenet",),
                    "infer_batch_sizes": "1000",
                }
            },
            "--infer-batch-sizes: got 1000; calibrated: 1, 4",
        ),
        (
            {"jobs": {"train_table": None, "infer_tables": (), "board": "agx-orin", "train_workload": "nothing"}},
            "--train-workload: got ",
        ),
        (
            {"jobs": {"train_table": None, "infer_tables": (), "board": "agx-orin", "infer_workloads": ("nothing",)}},
            "--infer-workload: got ",
        ),
    ],
)
def test_wrong_options_are_one_line(asked, change, words):
    if "jobs" in change:
        change = {"jobs": replace(asked.jobs, **change["jobs"])}
    with pytest.raises(BadInput) as error:
        advise_interleaving(replace(asked, **change))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_any_network_that_the_layers_can_price_is_trained_and_served(capsys):
    names = ConcurrentJobOptions(
        board="agx-orin",
        train_workload="resnet34",
        infer_workloads=("squeezenet1_1",),
        max_latency_s=(0.8,),
        rate_hz=(30.0,),
        infer_batch_sizes="4,16",
        batch_size=8,
    )

    found = data(ConcurrentPlanOptions(names, 30.0, strategy="none"), capsys)

    assert (found["feasible"], found["label"]) == (True, "estimated")
    assert any("training of resnet34 in batches of 8" in line for line in found["sources"])
    assert any("inference of squeezenet1_1 in batches of 4, 16" in line for line in found["sources"])
