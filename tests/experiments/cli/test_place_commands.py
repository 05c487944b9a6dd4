"""``fedge place`` and ``fedge place-run``: the plan, its JSON and page, and every mistake as one line."""

import json
from pathlib import Path

import pytest
from contracts.crashing import disk_full
from typer.testing import CliRunner

from experiments.cli.command_output import Outputs
from experiments.cli.main import app
from experiments.cli.place_commands import place_run, print_placement, print_placement_runs
from fedge.analysis.placement.placement_advice import PlacementOptions, advise_placement
from fedge.analysis.placement.placement_runs import PlacementRunOptions, parse_placement
from fedge.errors import BadInput

ROWS = """instances,batch_sizes,precisions,images_per_s,watts
cuda-cores,1,fp32,60,25
cuda-cores,8,fp32,200,40
cuda-cores,64,fp32,300,50
dla-0,8,fp16,100,15
dla-0,64,fp16,90,15
cuda-cores+dla-0,8,fp32+fp16,280,43
"""
WORKLOAD = "resnet50"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def test_the_command_line_plans_and_writes_json_and_a_page(tmp_path):
    html, data = tmp_path / "p.html", tmp_path / "p.json"
    arguments = ["place", WORKLOAD, "--board", "agx-orin", "--rate-hz", "300", "--html", str(html), "--out", str(data)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "least latency, at 300 images/s" in done.output
    written = json.loads(data.read_text())
    assert written["label"] == "estimated"
    assert written["chosen"]["images_per_s"] >= 300
    assert {one["combination"] for one in written["combinations"]} >= {"cuda-cores", "cuda-cores + tensor-cores"}
    best = max(
        (one for one in written["combinations"] if one["combination"] == "cuda-cores"), key=lambda c: c["images_per_s"]
    )
    assert best["placement"][0]["batch_size"] == 64
    assert best["images_per_s"] == pytest.approx(415.2, rel=0.01)
    assert all(figure["source"] and figure["label"] for figure in written["figures"])
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.split("<script>")[0].replace("http://www.w3.org", "")


def test_measurements_calibrate_the_plan_and_its_page(rows, tmp_path):
    advice = advise_placement(PlacementOptions(WORKLOAD, "agx-orin", on="cuda-cores,dla-0,dla-1", measurements=rows))
    assert advice.fitted.error < 15
    print_placement(
        PlacementOptions(WORKLOAD, "agx-orin", measurements=rows),
        Outputs(False, tmp_path / "p.json", tmp_path / "p.html"),
    )
    assert "Measured and predicted" in (tmp_path / "p.html").read_text()
    written = json.loads((tmp_path / "p.json").read_text())
    assert written["fit"]["rows"] == 6
    labels = {one["combination"]: one["label"] for one in written["combinations"]}
    assert labels["cuda-cores + dla-0"] == "calibrated"
    assert labels["tensor-cores"] == "estimated"


def test_this_machine_is_a_board_once_something_was_measured(tmp_path):
    path = tmp_path / "here.csv"
    path.write_text(
        "instances,batch_sizes,precisions,images_per_s\n"
        "torch-cpu,1,fp32,16\ntorch-cpu,4,fp32,17\nort-cpu,1,fp32,28\nort-cpu,4,fp32,29\n"
        "torch-cpu+torch-cpu,4,fp32,30\nort-cpu+ort-cpu,1,fp32,50\n"
    )
    advice = advise_placement(PlacementOptions("resnet18-imagenet", "here", measurements=path, batch_sizes="1,4"))
    assert advice.label == "calibrated"
    assert advice.chosen.placement.combination in {"ort-cpu", "torch-cpu + ort-cpu"}
    assert not advice.knows_watts
    with pytest.raises(BadInput, match="place-run"):
        advise_placement(PlacementOptions("resnet18-imagenet", "here"))
    with pytest.raises(BadInput, match="no watts"):
        advise_placement(PlacementOptions("resnet18-imagenet", "here", objective="energy", measurements=path))


def test_a_network_that_a_dla_cannot_run_whole_says_what_falls_back():
    advice = advise_placement(PlacementOptions("mobilenetv3l-gld23k", "agx-orin"))
    assert any("hard_swish" in note and "fall back" in note for note in advice.notes)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"rate_hz": 5000.0}, "--rate-hz at most"),
        ({"rate_hz": 300.0, "max_power_w": 15.0}, "--max-power-w at least"),
        ({"max_latency_s": 0.001}, "--max-latency-s at least"),
        ({"on": "tensor-cores,npu"}, "npu"),
        ({"batch_sizes": "0,4"}, "--batch-sizes"),
        ({"batch_sizes": "a"}, "--batch-sizes"),
        ({"objective": "speed"}, "throughput, latency, energy"),
        ({"max_power_w": -3.0}, "--max-power-w"),
        ({"board": "orin-nano", "on": "dla-0"}, "orin-nano has no DLA"),
    ],
)
def test_what_cannot_be_is_one_line(more, told):
    with pytest.raises(BadInput, match=told) as caught:
        advise_placement(PlacementOptions(WORKLOAD, **{"board": "agx-orin", **more}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["html", "out"])
def test_a_file_that_cannot_be_written_is_one_line(option, tmp_path, monkeypatch):
    monkeypatch.setattr("fedge.atomic_files.replace_file", disk_full)
    outputs = Outputs(False, **{option: tmp_path / "p"})
    with pytest.raises(BadInput, match=f"--{option}: .*No space left"):
        print_placement(PlacementOptions(WORKLOAD, "agx-orin", batch_sizes="1"), outputs)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (PlacementRunOptions("digits-cnn", seconds=float("nan")), "--seconds"),
        (PlacementRunOptions("digits-cnn", ("dla-0:4:fp16",)), "no DLA"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_runs(asked, told):
    with pytest.raises(BadInput, match=told):
        print_placement_runs(asked, None)


@pytest.mark.parametrize("text", ["ort-cpu", "ort-cpu:0:fp32", "ort-cpu:x:fp32", "ort-cpu:1:fp32+", "a::b"])
def test_instances_that_cannot_be_meant_are_refused(text):
    with pytest.raises(BadInput, match=r"NAME:BATCH:PRECISION|--instances ort-cpu:.*whole number"):
        parse_placement(text)


def test_without_a_network_it_lists_what_can_run_here(capsys):
    place_run(None)

    text = " ".join(capsys.readouterr().out.split())
    assert "no: this machine has no DLA" in text
    assert "no: None" not in text


@pytest.mark.long
def test_what_was_run_can_be_fed_back(tmp_path):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "rows.csv"
    print_placement_runs(PlacementRunOptions("digits-cnn", (), "1,8", 1, 0.3), out)
    advice = advise_placement(PlacementOptions("digits-cnn", "here", measurements=out, batch_sizes="1,4,8"))
    assert advice.label == "calibrated"
    assert advice.fitted.rows == 4


def test_a_plan_beyond_the_modules_watts_says_so_and_one_within_them_does_not():
    beyond, within = (
        advise_placement(PlacementOptions(WORKLOAD, "agx-orin", max_power_w=limit)) for limit in (None, 60.0)
    )
    assert any("--max-power-w 60" in note for note in beyond.notes)
    assert within.chosen.power_w <= 60
    assert not any("more than the module" in note for note in within.notes)
