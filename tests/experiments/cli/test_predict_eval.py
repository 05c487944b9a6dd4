"""``fedge predict eval`` checks what was typed, writes rows and a page, and fails at the end when a cell did."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.boards import write_table
from contracts.launching import FEDGE
from contracts.processes import wait_for
from contracts.shown import shown_text

from experiments.cli.command_output import Outputs
from experiments.cli.predict_commands import evaluate_predictors
from experiments.report.predictors.evaluation_report import print_evaluation
from fedge.errors import BadInput, FedgeError
from fedge.studies.prediction_study import PredictionRow, PredictionStudyOptions, build_prediction_study

PLUG_INS = """
import numpy as np
from fedge.types import Modes, Predictions

class Draw:
    def __init__(self, candidates, knowledge):
        self.candidates, self.rng = candidates, np.random.default_rng(knowledge.seed)
    def ask(self, count):
        return Modes(self.candidates.knobs[self.rng.permutation(len(self.candidates))[:count]])
    def tell(self, measurements):
        pass

class Broken:
    def __init__(self, knowledge):
        pass
    def fit(self, measurements):
        raise ValueError("on <purpose>")

class Slow:
    def __init__(self, knowledge):
        pass
    def fit(self, measurements):
        import pathlib, time
        if len(measurements) > 2:
            pathlib.Path(__file__).with_suffix(".begun").touch()
            time.sleep(600.0)
        raise ValueError("too late")
"""


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"eval_plug_ins_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PLUG_INS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def asked(tmp_path: Path, plug_ins: str, one_core: None) -> PredictionStudyOptions:
    """A small study of the predictor that needs least."""
    target = write_table(tmp_path / "my-board" / "train" / "net.csv", 1)
    return PredictionStudyOptions(
        (target,), methods="physical", modes="5,8", seeds=2, explorer=f"{plug_ins}:Draw", choice="plain"
    )


def test_rows_a_page_and_tables_come_out(asked, tmp_path, capsys):
    evaluate_predictors(asked, Outputs(False, tmp_path / "rows.json", tmp_path / "page.html"))

    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [(row["modes"], row["seed"]) for row in rows] == [(5, 0), (5, 1), (8, 0), (8, 1)]
    assert all(row["error"] is None and row["time_mape"] < 100 for row in rows)
    assert {row["target"] for row in rows} == {str(asked.targets[0])}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in ("my-board/net: errors", "measured", "predicted", "modes profiled", "Fronts of time and power"):
        assert words in page
    assert "http://" not in page.split("<script>")[0]
    shown = capsys.readouterr().out
    assert "my-board/net" in shown
    assert "physical" in shown
    assert not list(tmp_path.glob(".*.part"))


def test_a_failing_method_leaves_rows_and_fails_at_the_end(asked, plug_ins, tmp_path):
    both = replace(asked, methods=f"{plug_ins}:Broken,physical", modes="5")

    with pytest.raises(FedgeError, match=r"2 of 4 cells failed; .*on <purpose>"):
        evaluate_predictors(both, Outputs(False, tmp_path / "rows.json", tmp_path / "page.html"))

    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["error"] for row in rows] == ["ValueError: on <purpose>"] * 2 + [None] * 2
    assert [row["time_mape"] is None for row in rows] == [True, True, False, False]
    assert "on <purpose>" not in (tmp_path / "page.html").read_text(encoding="utf-8"), "it is escaped"


def test_a_page_of_nothing_but_failures_says_why(asked, plug_ins, tmp_path):
    with pytest.raises(FedgeError):
        evaluate_predictors(
            replace(asked, methods=f"{plug_ins}:Broken", modes="5"), Outputs(False, None, tmp_path / "page.html")
        )

    assert "on &lt;purpose&gt;" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": "physical,fedg"}, "--methods: got 'fedg'; did you mean fedge? known: fedge, "),
        ({"methods": "physical,,physical"}, "--methods: got 'physical,,physical'"),
        ({"methods": "physical,physical"}, "each once"),
        ({"methods": "no.module:Predictor"}, "importable"),
        ({"explorer": "lucky"}, "--explorer: got 'lucky'; known: "),
        ({"choice": "lucky"}, "--choice: got 'lucky'; known: plain, margin, verified"),
        ({"modes": "10,"}, "--modes: got '10,'"),
        ({"modes": "0"}, "--modes: got '0'"),
        ({"modes": "ten"}, "--modes: got 'ten'"),
        ({"modes": "5,5"}, "each once"),
        ({"modes": "10,126"}, "--modes: got 126; fewer than the 126 modes"),
        ({"budgets": "17:50"}, "--budgets: got '17:50'; LOW:HIGH:STEP"),
        ({"budgets": "50:17:1"}, "--budgets: got '50:17:1'"),
        ({"budgets": "17:50:0"}, "--budgets: got '17:50:0'"),
        ({"budgets": "1:nan:1"}, "--budgets: got '1:nan:1'"),
        ({"budgets": "1:50:0.001"}, "at most 1000 budgets"),
        ({"batch_size": 64}, "batch size: got 64; known: 16"),
        ({"targets": (Path("nowhere.csv"),)}, "nowhere.csv: got no such file"),
        ({"references": (Path("nowhere.csv"),)}, "nowhere.csv: got no such file"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(asked, change, words):
    with pytest.raises(BadInput) as caught:
        build_prediction_study(replace(asked, **change))

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_workload_name_cannot_be_that_of_two_targets(asked, tmp_path):
    other = write_table(tmp_path / "my-board" / "train" / "other.csv", 2)

    with pytest.raises(BadInput, match="one target"):
        build_prediction_study(replace(asked, targets=(*asked.targets, other), workload="net"))
    with pytest.raises(BadInput, match="the same table twice"):
        build_prediction_study(replace(asked, targets=(*asked.targets, *asked.targets)))


def test_a_table_of_one_mode_cannot_be_judged(asked, tmp_path):
    single = write_table(tmp_path / "b" / "train" / "one.csv", rows=slice(1))

    with pytest.raises(BadInput, match="one power mode"):
        build_prediction_study(replace(asked, targets=(single,), modes="1"))


def test_budgets_run_from_low_to_high_with_both_ends(asked):
    (target,) = build_prediction_study(replace(asked, budgets="17:50:1")).targets
    assert target.budgets_w == tuple(float(watts) for watts in range(17, 51))

    (target,) = build_prediction_study(replace(asked, budgets="10:11:0.25")).targets
    assert target.budgets_w == (10.0, 10.25, 10.5, 10.75, 11.0)


def test_the_targets_own_table_is_dropped_as_a_reference_with_a_note(asked, tmp_path):
    other = write_table(tmp_path / "my-board" / "train" / "other.csv", 2)

    study = build_prediction_study(replace(asked, targets=(*asked.targets, other), references=(*asked.targets, other)))

    first, second = study.targets
    assert [reference.workload for reference in first.background.knowledge.references] == ["other"]
    assert [reference.workload for reference in second.background.knowledge.references] == ["net"]
    notes = "\n".join(study.notes)
    assert notes.count("is no reference for") == 2
    assert notes.count("my-board is not in the catalogue") == 1


def test_names_of_the_target_may_be_given(asked):
    (target,) = build_prediction_study(replace(asked, board="agx-orin", workload="resnet18-imagenet")).targets

    assert (target.table.device, target.table.workload) == ("agx-orin", "resnet18-imagenet")
    assert not [seen for seen in target.background.prior_tables if "resnet18" in seen]


def test_a_reference_is_read_at_the_targets_batch_size_or_at_its_only_one(asked, tmp_path):
    target = write_table(tmp_path / "b" / "infer" / "several.csv", 3, batches=(4, 32))
    one = write_table(tmp_path / "b" / "train" / "one.csv", 4)
    same = write_table(tmp_path / "b" / "infer" / "same.csv", 5, batches=(4, 32))
    neither = write_table(tmp_path / "b" / "infer" / "neither.csv", 6, batches=(1, 2))

    (found,) = build_prediction_study(replace(asked, targets=(target,), references=(one, same), batch_size=32)).targets

    assert found.table.batch_size == 32
    assert [reference.batch_size for reference in found.background.knowledge.references] == [16, 32]
    with pytest.raises(BadInput, match="choose one"):
        build_prediction_study(replace(asked, targets=(target,), references=(neither,), batch_size=32))


@pytest.mark.parametrize("width", [80, 160])
def test_the_tables_show_means_and_worst_seeds_without_cutting_a_figure(width):
    others = {
        "excess_w": 10.25,
        "over_limit": 100.0,
        "over_limit_1w": 100.0,
        "verify_modes": 1.5,
        "fit_s": 10.07,
        "predict_s": 0.363,
        "profiling_s": 12345.0,
    }
    rows = [
        PredictionRow("powertrain", "t.csv", 100, seed, **figures, **others, device="b", workload="w")
        for seed, figures in enumerate(
            [
                dict.fromkeys(("time_mape", "power_mape", "penalty_median", "penalty_mean"), 11.5)
                | {"coverage90": 80.0},
                dict.fromkeys(("time_mape", "power_mape", "penalty_median", "penalty_mean"), 12.5)
                | {"coverage90": 90.0},
            ]
        )
    ]
    text = shown_text(print_evaluation, rows, width=width)

    assert text.count("12.0 (12.5)") == 4
    assert "85 (80)" in text, "the worst coverage is the smallest"
    assert "100 (100)" in text
    assert "1.50" in text
    assert "12,345" in text
    assert "…" not in text


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_and_leaves_neither_process_nor_file(asked, plug_ins, tmp_path):
    command = [*FEDGE, "predict", "eval", "--target", str(asked.targets[0])]
    options = ["--methods", f"{plug_ins}:Slow", "--modes", "5", "--explorer", f"{plug_ins}:Draw"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    out = tmp_path / "rows.json"
    process = subprocess.Popen(
        [*command, *options, "--out", str(out)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for((tmp_path / f"{plug_ins}.begun").exists, "a cell is computed", 300.0)

    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60.0)

    assert process.returncode == 130
    assert "Traceback" not in error
    assert not out.exists()
    wait_for(lambda: not is_group_alive(process.pid), "all of its processes ended")


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
