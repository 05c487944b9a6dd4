"""``fedge run`` says after a run what went otherwise than planned, of how many, and what to do about a failure."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.run_experiment import _list_notes, _list_start_notes, _suggest_fix
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import LOWER_RATE
from fedge.experiment import Experiment

SUMMARY: dict[str, Any] = {
    "labels": {"nano": {"count": 2, "truth": {"label": "estimated"}}},
    "rounds": 3,
    "clients": 2,
    "asked": 6,
    "asynchronous": False,
    "infeasible": 0,
    "late": 0,
    "late_lost": 0,
    "failed": 0,
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"infeasible": 1}, "note: 1 goal that no known mode could meet (of 3 rounds x 2 boards); see the report"),
        ({"infeasible": 2, "asked": 4}, "note: 2 goals that no known mode could meet (of 4 board rounds); "),
        (
            {"infeasible": 2, "asked": 9, "asynchronous": True},
            "note: 2 plans that no known mode could meet (of 9 tasks); ",
        ),
        ({"late": 1}, "note: 1 reply late (of "),
        ({"late": 3, "late_lost": 1}, "note: 3 replies late, 1 of them lost (joined no round)"),
        ({"failed": 1, "late": 2}, "note: 2 replies late, 1 board round failed (of "),
    ],
)
def test_what_went_wrong_is_told_of_how_many(changes, told):
    origin, note = _list_notes({**SUMMARY, **changes})

    assert origin == "emulated boards: 2 estimated"
    assert note.startswith(told)


def test_a_saving_on_boards_estimated_from_layers_is_called_one_draw():
    layered = {
        "nano": {"count": 1, "truth": {"label": "estimated", "time_error": 0.32, "power_error": 0.09}},
        "tx2": {"count": 1, "truth": {"label": "estimated", "time_error": 0.23, "power_error": 0.47}},
    }
    _, note = _list_notes({**SUMMARY, "labels": layered})

    errors = "time off by 32 %, power by 47 %"
    assert note == f"note: estimated from layers ({errors}): savings are one draw, compare several seeds"


def test_a_run_that_its_budget_ended_says_how_to_go_on():
    assert (
        "raise policy.budget_j in its run.yaml" in list(_list_notes({**SUMMARY, "ended": "90 J of 100 J are spent"}))[1]
    )


def test_a_run_in_which_nobody_can_be_asked_is_to_be_changed_before_it_goes_on():
    stuck = _suggest_fix(
        "round 2: no board can be asked, now or later; all are away for good, or too empty", Path("runs/a")
    )

    assert stuck == "change the boards' availability, battery or memory in its run.yaml, then `fedge resume runs/a`"
    assert _suggest_fix("no round was played: 0 J; raise policy.budget_j in run.yaml", Path("runs/a")) == (
        "then `fedge resume runs/a` runs it"
    )
    assert _suggest_fix("round 2: strategy Mine failed", Path("runs/a")) == "`fedge resume runs/a` tries again"


def test_a_run_that_fails_for_its_learning_rate_is_not_advised_to_try_the_same_again():
    advice = _suggest_fix(
        f"round 1: no board gave a result; nano-1: refused: its loss is nan; {LOWER_RATE}", Path("runs/a")
    )

    assert advice == "lower workload.learning_rate in its run.yaml, then `fedge resume runs/a`"


def test_the_terminal_says_in_one_line_what_a_step_costs():
    fleet = [{"device": "nano"}, {"device": "orin-nano", "cost": "vit-b16-cifar10"}]
    for count, charged in ((1, "resnet18-imagenet, batch 16"), (2, "resnet18-imagenet, batch 16 for nano; vit-b16")):
        experiment = Experiment.model_validate({"fleet": fleet[:count]})
        line, *_ = _list_start_notes(experiment, Path("office.yaml"))
        assert line.startswith(f"a step is priced as {charged}")
        assert line.endswith("; the trained model has 24.7 kB")


@pytest.mark.parametrize(
    ("given", "loaded"), [({}, "workers (image files, "), ({"loading": "cached"}, "cached (samples")]
)
def test_the_terminal_says_whether_a_network_s_price_has_the_loading_of_images(tmp_path, given, loaded):
    workload = {"task": "digits-cnn", "network": {"model": "digits-cnn", **given}}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"name": "n", "fleet": ["nano"], "workload": workload}))
    line, *_ = _list_start_notes(load_experiment(path), path)

    assert line.startswith(f"a step is priced as digits-cnn, batch 16, loading: {loaded}")
