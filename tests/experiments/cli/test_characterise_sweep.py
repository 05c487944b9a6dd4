"""``fedge characterise`` measures what is left, leaves every file it promises, and says what was skipped or failed."""

import csv
import dataclasses
import json
import sys

import pytest
import typer
import yaml
from characterised.fake import FakeRig
from typer.testing import CliRunner

from experiments.cli import characterise_commands as command
from experiments.cli.main import app
from fedge.characterisation import sweep_run
from fedge.characterisation.plan_reader import read_resolved_plan
from fedge.characterisation.sweep_store import read_result
from fedge.errors import BadInput

PLAN = {
    "name": "short",
    "board": "emulated:nano",
    "workloads": {"lenet5-mnist": {"count": 320}},
    "modes": {"low": "-/-/min/-"},
    "sweeps": [{"workers": [0, 1]}, {"mode": ["low", "maxn"]}],
}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def rig(monkeypatch):
    """A fake in the place of every board; nothing is drawn."""
    fake = FakeRig()
    monkeypatch.setattr(sweep_run, "_build_rig", lambda plan, board, folder: fake)
    monkeypatch.setattr("experiments.report.characterisation.characterisation_page.write_report", nothing_found)
    monkeypatch.setattr("fedge.characterisation.sweep_store.write_tables", lambda result: [])
    return fake


def nothing_found(result):
    """In the place of the report."""
    (result.folder / "findings.json").write_text(json.dumps({"findings": [], "advice": []}))
    return []


@pytest.mark.slow
def test_a_plan_on_an_emulated_board_leaves_every_file(plan, out, capsys):
    command.measure_points(plan, out, as_json=False)

    told = capsys.readouterr().out.splitlines()
    found = json.loads((out / "findings.json").read_text())
    assert told[:3] == [f"found: {one['title']}" for one in found["findings"][:3]]
    assert told[3] == f"found: {len(found['findings']) - 3} more, in the report"
    assert told[4].startswith("turn next: ")
    assert told[4].endswith("lenet5-mnist on nano-1, training, estimated")
    last = told[5:]
    assert last[0].startswith("3 of 3 points; ")
    assert last[0].endswith(" s of the emulated boards' time")
    assert last[1] == f"report: {out / 'report.html'}"
    for name in (
        "plan.yaml",
        "journal",
        "epochs.csv",
        "report.html",
        "findings.json",
        "tables",
        "minibatches",
        "strips",
    ):
        assert (out / name).exists(), name
    assert (out / "report.html").read_text().lower().startswith("<!doctype html")
    result = read_result(out)
    assert result.plan == read_resolved_plan(plan).plan
    assert {point.label for point in result.points} == {"estimated"}


def test_started_again_it_measures_nothing_and_says_so_to_a_program(plan, out, rig, capsys):
    command.measure_points(plan, out, as_json=True)
    first = json.loads(capsys.readouterr().out)
    command.measure_points(plan, out, as_json=True)
    second = json.loads(capsys.readouterr().out)

    assert (first["points"], first["done"], first["new"], first["skipped"], first["failed"]) == (3, 3, 3, [], [])
    assert second == {**first, "new": 0}
    assert first["board_s"] == 30.0
    assert str(out / "epochs.csv") in first["written"]
    assert len(rig.measured) == 3


def test_a_plan_that_gained_points_goes_on_and_another_is_refused(plan, out, rig, capsys):
    command.measure_points(plan, out, as_json=False)
    plan.write_text(yaml.safe_dump({**PLAN, "sweeps": [*PLAN["sweeps"], {"workers": [2]}]}))
    command.measure_points(plan, out, as_json=False)
    assert "going on: 1 of 4 points are left" in capsys.readouterr().err
    assert len(rig.measured) == 4

    plan.write_text(yaml.safe_dump({**PLAN, "workloads": {"lenet5-mnist": {"count": 640}}}))
    for act in (command.measure_points, command.list_points):
        with pytest.raises(BadInput, match=r"journal: workloads.lenet5-mnist.images.count: got 320; 640 was asked"):
            act(plan, out, as_json=False)


def test_skipped_and_failed_points_are_told_with_their_reasons(plan, out, rig, capsys):
    points = read_resolved_plan(plan).plan.points
    rig.refused, rig.failing = {points[0].key: "there is no root"}, {points[1].key: 1}
    command.measure_points(plan, out, as_json=False)

    told = capsys.readouterr()
    assert "skipped: nano-1, lenet5-mnist" in told.out
    assert "there is no root" in told.out
    assert "failed: nano-1, lenet5-mnist" in told.out
    assert "the same command tries it once more" in told.out
    assert "1 of 3 points (1 skipped, 1 failed); 10.0 s of" in told.out
    assert "failed and is left out: it fell over" in told.err


def test_notes_that_differ_in_figures_alone_are_told_once(plan, out, rig, capsys, monkeypatch):
    original, cores = FakeRig.measure, iter((0.5, 0.7, 0.9))

    def measure(self, *given):
        noted = ("clocks are as found", f"others kept {next(cores)} cores busy")
        return dataclasses.replace(original(self, *given), notes=noted)

    monkeypatch.setattr(FakeRig, "measure", measure)
    command.measure_points(plan, out, as_json=False)
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert notes[0] == "note at 3 of 3 points: clocks are as found"
    assert notes[1].startswith("note at 3 of 3 points, for example: others kept 0.")
    assert len(notes) == 2


def test_the_users_own_network_is_found_in_the_folder_of_the_command(plan, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [one for one in sys.path if one])
    (tmp_path / "net_beside_the_plan.py").write_text(
        "from torch import nn\ndef make(shape):\n    return nn.Conv2d(shape.channels, shape.classes, shape.side)\n"
    )
    images = {"count": 64, "width": 8, "height": 8}
    mine = {"mine": {"model": "net_beside_the_plan:make", "input": [3, 8, 8], "classes": 2, "images": images}}
    plan.write_text(yaml.safe_dump({**PLAN, "workloads": mine}))
    asked = read_resolved_plan(plan).plan
    assert (
        sweep_run.build_rigs(asked, tmp_path, plan)["nano-1"].refusal_reason(asked.points[0], asked.workloads["mine"])
        is None
    )


def test_a_point_that_failed_twice_is_left_until_it_is_asked_for_again(plan, out, rig, capsys):
    points = read_resolved_plan(plan).plan.points
    rig.failing = {points[0].key: 2}
    for _ in range(3):
        command.measure_points(plan, out, as_json=False)
    assert "failed twice: --again tries once more" in capsys.readouterr().out
    assert points[0].key not in {one.point.key for one in read_result(out).points}

    command.measure_points(plan, out, as_json=False, again=True)
    assert len(read_result(out).points) == 3


def test_before_anything_is_finished_a_plan_may_be_mended(plan, out, rig):
    rig.failing = {point.key: 2 for point in read_resolved_plan(plan).plan.points}
    for _ in range(2):
        with pytest.raises(typer.Exit):
            command.measure_points(plan, out, as_json=False)
    plan.write_text(yaml.safe_dump({**PLAN, "workloads": {"lenet5-mnist": {"count": 640}}}))
    command.measure_points(plan, out, as_json=False)
    result = read_result(out)
    assert len(result.points) == 3
    assert result.plan.workloads["lenet5-mnist"].images.count == 640


def test_a_point_whose_files_are_gone_or_cut_off_is_measured_again_and_no_other(plan, out, rig, capsys):
    command.measure_points(plan, out, as_json=False)
    keys = [point.key for point in read_resolved_plan(plan).plan.points]
    (out / "strips" / f"{keys[0]}.parquet").unlink()
    cut = out / "minibatches" / f"{keys[1]}.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    command.measure_points(plan, out, as_json=False)
    assert "the files of 2 finished points are gone or damaged: measured again" in capsys.readouterr().err
    assert sorted(point.key for point in rig.measured) == sorted([*keys, *keys[:2]])
    assert all(len(one.read_minibatches().step_s) for one in read_result(out).points)


def test_without_a_folder_a_sweep_goes_where_its_name_says(plan, rig, tmp_path):
    for _ in range(2):
        command.measure_points(plan, None, as_json=False)
    assert len(read_result(tmp_path / "characterised" / "short").points) == 3
    assert len(rig.measured) == 3


def test_where_every_point_fails_it_exits_with_one_and_keeps_the_reasons(plan, out, rig, capsys):
    rig.failing = {point.key: 9 for point in read_resolved_plan(plan).plan.points}
    with pytest.raises(typer.Exit) as ended:
        command.measure_points(plan, out, as_json=True)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    assert told.err.count("it fell over") == 1
    answer = json.loads(told.out)
    assert [one["reason"] for one in answer["failed"]] == ["it fell over"] * 3
    assert answer["report"] is None


def test_an_interrupt_keeps_what_is_done_and_the_same_command_goes_on(plan, out, rig, capsys, monkeypatch):
    original = FakeRig.measure

    def measure(self, *given):
        if len(self.measured) == 2:
            raise KeyboardInterrupt
        return original(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(FakeRig, "measure", measure)
        with pytest.raises(KeyboardInterrupt):
            command.measure_points(plan, out, as_json=False)
    said = capsys.readouterr().err
    assert f"{out} holds the 2 points done so far; the same command goes on" in said
    assert f"fedge characterise-report {out}" in said

    command.measure_points(plan, out, as_json=False)
    assert len(rig.measured) == len(set(rig.measured)) == 3


def test_the_plan_says_what_its_modes_became(plan, out, rig):
    command.measure_points(plan, out, as_json=False)

    written = yaml.safe_load((out / "plan.yaml").read_text())
    assert written["modes"] == {"nano-1": {"maxn": "4/1479/921.6/1600", "low": "4/1479/76.8/1600"}}
    assert [point["key"] for point in written["points"]] == [
        point.key for point in read_resolved_plan(plan).plan.points
    ]
    assert written["workloads"]["lenet5-mnist"]["images"]["count"] == 320


def test_a_row_per_epoch_of_every_point_with_its_setting_and_labels(plan, out, rig):
    command.measure_points(plan, out, as_json=False)

    with (out / "epochs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 3
    result = read_result(out)
    assert [row["key"] for row in rows] == [point.point.key for point in result.points for _ in range(3)]
    assert {(row["cores"], row["gpu_mhz"]) for row in rows} == {("4", "921.6"), ("4", "76.8")}
    assert [row["discarded"] for row in rows[:3]] == ["True", "False", "False"]
    assert float(rows[4]["e2e_s"]) == result.points[1].epochs[1].e2e_s
    assert {(row["label"], row["power_label"], row["power_w"]) for row in rows} == {("estimated", "estimated", "")}


# The list -------------------------------------------------------------------------------------------------------------


def test_the_list_measures_nothing_and_says_how_long_emulated_boards_take(plan, out, capsys):
    command.list_points(plan, None, as_json=False)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == [point.key for point in read_resolved_plan(plan).plan.points]
    assert lines[3].startswith("3 points, about ")
    assert not out.exists()


def test_the_list_says_about_as_much_time_as_it_then_takes(plan, out, capsys, monkeypatch):
    monkeypatch.setattr("experiments.report.characterisation.characterisation_page.write_report", nothing_found)
    command.list_points(plan, None, as_json=True)
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert {row["state"] for row in rows.values()} == {"left"}
    command.measure_points(plan, out, as_json=False)
    for point in read_result(out).points:
        took_s = sum(epoch.e2e_s for epoch in point.epochs)
        assert rows[point.point.key]["seconds"] == pytest.approx(took_s, rel=0.25)


def test_a_plan_without_a_mode_is_told_at_which_it_is_measured(plan, out, rig, capsys):
    command.measure_points(plan, out, as_json=False)
    assert "MAXN" not in capsys.readouterr().err

    plan.write_text(yaml.safe_dump({**PLAN, "sweeps": [{"workers": [0, 1]}]}))
    said = "the plan names no mode: every point is at MAXN (4c/1479/921.6/1600 MHz on nano)"
    command.measure_points(plan, out.with_name("other"), as_json=True)
    told = capsys.readouterr()
    assert f"fedge: {said}" in told.err
    assert json.loads(told.out)["done"] == 2
    command.list_points(plan, out.with_name("other"), as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_the_list_knows_what_is_done(plan, out, rig, capsys):
    points = read_resolved_plan(plan).plan.points
    rig.refused, rig.failing = {points[0].key: "no root"}, {points[1].key: 1}
    command.measure_points(plan, out, as_json=False)
    capsys.readouterr()
    command.list_points(plan, out, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["skipped", "failed", "done"]


def test_the_list_says_why_a_point_is_skipped_and_how_far_repeats_lie_apart(plan, rig, capsys):
    plan.write_text(yaml.safe_dump({**PLAN, "course": {"repeats": 3, "every_s": 1800}}))
    points = read_resolved_plan(plan).plan.points
    rig.refused = {points[4].key: "there is no root"}
    command.list_points(plan, None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split()[1:3] == ["skipped", "–"]
    assert lines[4].endswith("(there is no root)")
    assert lines[9].startswith("9 points, 1 skipped, about")
    assert lines[9].endswith("; at least 1 h 0 min from the first repeat to the last")


def test_of_this_machine_nobody_says_how_long_it_takes(plan, capsys):
    plan.write_text(yaml.safe_dump({**PLAN, "board": "here", "modes": {}, "sweeps": [{"workers": [0, 1]}]}))
    command.list_points(plan, None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["–", "–"]
    assert lines[2:] == ["2 points"]  # nothing of modes, which cannot be set here


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_a_mistake_is_found_before_anything_is_written(plan, out, tmp_path):
    with pytest.raises(BadInput, match=r"nosuch\.yaml: got no such file"):
        command.measure_points(tmp_path / "nosuch.yaml", out, as_json=False)
    plan.write_text(yaml.safe_dump({**PLAN, "sweeps": [{"worker": [1]}]}))
    with pytest.raises(BadInput, match=r"sweeps\[0\]"):
        command.measure_points(plan, out, as_json=False)
    mine = {
        "mine": {"model": "nosuch", "input": [3, 8, 8], "classes": 2, "images": {"count": 64, "width": 8, "height": 8}}
    }
    plan.write_text(yaml.safe_dump({**PLAN, "workloads": mine}))
    with pytest.raises(BadInput, match=r"plan.yaml: workloads.mine.model: got 'nosuch'"):
        command.measure_points(plan, out, as_json=False)
    assert not out.exists()


def test_the_options_reach_the_command(plan, out):
    done = CliRunner().invoke(app, ["characterise", str(plan), "--folder", str(out), "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)) == 3
    assert not out.exists()
    for name in ("characterise", "characterise-report", "characterise-predict"):
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
