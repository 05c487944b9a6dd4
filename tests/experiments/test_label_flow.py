"""A table's label goes with it: from ``fedge profile`` through models, references, runs, reports and calibrations."""

import dataclasses
import json
from pathlib import Path

import pytest
from contracts.launching import Launcher

from fedge.costs.cost_profile import read_profile
from fedge.devices.tables.mode_table import read_mode_table, write_mode_table
from fedge.knowledge.knowledge_folder import list_entries
from fedge.knowledge.model_file import load_model

BADGE = '<span class="badge {label}">{label}</span>'
RUN = """\
name: with-a-reference
seed: 3
rounds: 2
backend: local
fleet:
  - {{device: orin-nano, count: 1, references: ["{table}"]}}
workload: {{cost: mobilenetv3l-gld23k, batch_size: 16, local_epochs: 0.2}}
"""


@pytest.fixture
def fedge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Launcher:
    return Launcher(monkeypatch, capsys)


@pytest.fixture
def table(tmp_path: Path, fedge: Launcher) -> Path:
    """The table of an emulated board whose kind has a calibrated cost profile."""
    path = tmp_path / "orin-nano" / "train" / "resnet18-imagenet.csv"
    path.parent.mkdir(parents=True)
    asked = {
        "--board": "emulated:orin-nano",
        "--workload": "resnet18-imagenet",
        "--modes": "24",
        "--explorer": "random",
    }
    done = fedge("profile", *(word for pair in asked.items() for word in pair), "--out", str(path))
    assert done.code == 0, done.err
    return path


def test_the_label_of_an_emulated_table_is_said_wherever_the_table_goes(table, tmp_path, fedge):
    assert read_mode_table(table).label == "calibrated"
    assert json.loads(table.with_name(f"{table.name}.json").read_text())["label"] == "calibrated"

    # A model of another workload with this table as its reference.
    other = tmp_path / "orin-nano" / "train" / "mobilenetv3l-gld23k.csv"
    emulated = ("--board", "emulated:orin-nano", "--explorer", "random", "--modes", "8")
    assert fedge("profile", *emulated, "--workload", other.stem, "--out", str(other)).code == 0
    model = tmp_path / "model.safetensors"
    fitted = fedge("predict", "fit", str(other), "--reference", str(table), "--out", str(model))
    assert fitted.code == 0, fitted.err
    assert "(measured)" not in fitted.out
    assert "resnet18-imagenet.csv (calibrated)" in " ".join(fitted.out.split())
    loaded = load_model(model)
    assert loaded.about.origin.label == "estimated"
    assert [one.label for one in loaded.knowledge.references] == ["calibrated"]

    # A run with it: its checks, its summary and its page.
    experiment = tmp_path / "run.yaml"
    experiment.write_text(RUN.format(table=table), encoding="utf-8")
    run = tmp_path / "run"
    started = fedge("run", str(experiment), "--folder", str(run))
    assert started.code == 0, started.err
    check_run_says(run, "calibrated")

    # The study's page, and a calibration.
    study = tmp_path / "study.html"
    choice = ("study", "mode-choice", "--table", str(table), "--rounds", "2", "--seeds", "1", "--policies", "maxn")
    assert fedge(*choice, "--html", str(study)).code == 0
    assert BADGE.format(label="calibrated") in study.read_text(encoding="utf-8")
    assert BADGE.format(label="measured") not in study.read_text(encoding="utf-8")
    assert fedge("calibrate", str(table), "--folder", str(tmp_path / "calibrated")).code == 0
    profile = read_profile(tmp_path / "calibrated" / "orin-nano--resnet18-imagenet.yaml")
    assert (profile.label, profile.evidence.label) == ("estimated", "calibrated")


def check_run_says(run: Path, label: str) -> None:
    """The run's summary and page call the reference table what it is called."""
    prior = json.loads((run / "summary.json").read_text())["labels"]["orin-nano"]["prior"]
    assert prior["label"] == "estimated"
    assert f"resnet18-imagenet.csv (24 rows, {label})" in prior["source"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"(24 rows, {label})" in page
    assert "(24 rows, measured)" not in page


def test_a_run_says_the_label_and_what_it_measured_keeps_its_own_in_the_knowledge(table, tmp_path, fedge):
    experiment, knowledge = tmp_path / "run.yaml", tmp_path / "knowledge"
    experiment.write_text(RUN.format(table=table) + f"knowledge: {knowledge}\n", encoding="utf-8")
    first, second = tmp_path / "first", tmp_path / "second"
    assert fedge("run", str(experiment), "--folder", str(first)).code == 0

    check_run_says(first, "calibrated")
    truth = json.loads((first / "summary.json").read_text())["labels"]["orin-nano"]["truth"]["label"]
    (entry,) = list_entries(knowledge).entries
    assert (entry.form, entry.label) == ("run", truth)
    assert truth in ("calibrated", "estimated")
    assert fedge("run", str(experiment), "--folder", str(second)).code == 0
    (origin,) = json.loads((second / "summary.json").read_text())["knowledge"]["origins"]["orin-nano-1"]
    assert (origin["relation"], origin["label"]) == ("same board", truth)


@pytest.mark.parametrize(
    ("label", "origin", "fitted"),
    [("unknown", "", "unknown"), ("unknown", "A. Author", "calibrated"), ("measured", "", "calibrated")],
)
def test_a_calibration_is_called_calibrated_only_if_somebody_says_that_the_table_was_measured(
    label, origin, fitted, table, tmp_path, fedge
):
    write_mode_table(table, dataclasses.replace(read_mode_table(table), label=label))

    done = fedge("calibrate", str(table), "--folder", str(tmp_path / "calibrated"), "--origin", origin)

    assert done.code == 0, done.err
    assert read_profile(tmp_path / "calibrated" / "orin-nano--resnet18-imagenet.yaml").label == fitted
