"""``fedge roofline MODEL`` and ``fedge roofline bench``: what they print and write, and what they refuse."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.roofline_boards import TRUTH, modes
from contracts.shown import charts_of
from typer.testing import CliRunner

from experiments.cli.network_commands import bench, network, roofline
from experiments.report.analysis.roofline_report import describe_constants
from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.roofline_analysis import (
    FITTED_MARGIN,
    RooflineOptions,
    _find_missing_measurement,
    analyse_roofline,
    build_basis,
)
from fedge.analysis.roofline.roofline_model import batch_energy_j, build_roofline_batch, compute_batch_times
from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.devices.catalogue import find
from fedge.errors import BadInput

pytestmark = pytest.mark.slow
RESNET = "resnet50-imagenet"


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(roofline, list(words), catch_exceptions=True, env={"COLUMNS": "200"})
    return done.exit_code, done.output + ("" if done.exception is None else str(done.exception))


def test_a_network_needs_no_table_to_get_its_mode(tmp_path):
    code, said = run(RESNET, "--board", "agx-orin", "--out", str(tmp_path / "r.json"))
    assert code == 0, said
    assert "Lowered, as it does not set the pace: GPU clock from 1300.5 to" in said
    assert "Constants are calibrated" in said
    found: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    assert found["label"] == "calibrated"
    assert found["slowdown"] <= 1.05
    assert found["saving"] > 0.05
    assert found["chosen"]["mode"]["gpu_mhz"] < found["maxn"]["mode"]["gpu_mhz"]
    assert found["maxn"]["step_s"] == pytest.approx(0.0154, rel=0.15)
    assert found["time_implies_energy"]["modes"] <= found["time_implies_energy"]["of"]
    front = [(one["step_s"], one["energy_j"]) for one in found["front"]]
    assert front == sorted(front, key=lambda pair: (pair[0], -pair[1]))


def test_a_mode_may_be_a_presets_name():
    found = analyse_roofline(RooflineOptions(RESNET, "agx-orin", mode="mode_30w"))
    assert found.basis.modes[found.shown_row] == find("agx-orin").presets["MODE_30W"]


def test_a_network_that_was_not_fitted_is_told_of_on_an_estimated_board_too():
    fitted = describe_constants(analyse_roofline(RooflineOptions(RESNET, "orin-nano")))
    assert "was not among them" not in fitted
    assert "No mode is chosen but MAXN, because no inference was measured on orin-nano" in fitted
    told = describe_constants(analyse_roofline(RooflineOptions("vit-b16-cifar10", "orin-nano")))
    assert "was not among them" in told
    assert "No mode is chosen but MAXN, because no inference was measured on orin-nano" in told
    assert "Measure MAXN and two lower modes first" in told


def test_a_network_without_measurements_is_priced_by_its_layers_with_a_stated_probability():
    found = analyse_roofline(RooflineOptions("vit-b16-cifar10", "agx-orin", batch_size=16))

    assert "Times, powers and choice are those of the network's layers" in found.caution
    assert "at most 5 % slower with 95 % probability" in found.caution
    assert "each predicted without its family" in found.caution
    assert found.choice.row != found.choice.maxn_row
    careful = analyse_roofline(RooflineOptions("vit-b16-cifar10", "agx-orin", batch_size=16, confidence=0.999))
    assert careful.choice.saving < found.choice.saving


def test_a_choice_without_enough_certainty_names_the_measurements_that_mend_it():
    found = analyse_roofline(
        RooflineOptions("vit-b16-cifar10", "agx-orin", batch_size=16, max_slowdown=1.005, confidence=0.999)
    )

    assert found.is_refused
    assert found.choice.row == found.choice.maxn_row
    assert "no lower mode keeps this limit with enough certainty" in found.caution
    assert "Measure MAXN and two lower modes first" in found.caution
    assert "fedge predict choose MODEL --max-slowdown 1.005 --confidence 0.999" in found.caution


def test_a_measured_network_is_priced_by_its_batch_sizes():
    found = analyse_roofline(RooflineOptions(RESNET, "agx-orin", batch_size=8))

    assert "those of its measured batch sizes" in describe_constants(found)
    assert "each predicted without its batch size" in describe_constants(found)


def test_a_network_among_the_users_tables_keeps_its_margin_and_record(tmp_path):
    found = analyse_roofline(RooflineOptions(RESNET, "agx-orin", profiles=write_tables(tmp_path)))

    assert found.choice.slowdown <= 1.05 * math.exp(-FITTED_MARGIN)
    assert "of 9 measured tables whose batch size was left out, 9 stayed within 5 %" in describe_constants(found)


def test_a_training_step_is_priced_by_its_layers_where_training_was_measured():
    code, said = run(RESNET, "--board", "orin-nano", "--batch-size", "16", "--kind", "train")
    assert code == 0, said
    assert f"{RESNET} on orin-nano, training in batches of 16: 394 GFLOP" in said
    assert "Constants are estimated" in said
    found = analyse_roofline(RooflineOptions("resnet18-imagenet", "orin-nano", batch_size=16, kind="train"))
    assert found.batch_times.total_s[found.choice.maxn_row] == pytest.approx(0.186, rel=0.15)  # its calibrated profile
    assert found.choice.saving > 0.0
    refused = analyse_roofline(RooflineOptions(RESNET, "nano", batch_size=16, kind="train"))
    assert "because no training was measured on nano" in refused.caution
    assert "--kind train" in refused.caution


def test_a_recurrent_network_is_refused_because_none_was_measured():
    layers = [LayerCost("lstm", "lstm", flop=1e9, read_bytes=1e6, written_bytes=1e6, weight_bytes=1e6)]
    network = NetworkCost("language-model", (35, 200), tuple(layers), "made up")

    missing = _find_missing_measurement(
        build_basis(find("agx-orin"), None), network, RooflineOptions("nets:lm", "agx-orin")
    )

    assert missing == "none of the measured networks is recurrent"


def write_tables(folder: Path) -> Path:
    """Tables of a made-up board under the names of known workloads."""
    into = folder / "agx-orin" / "infer"
    into.mkdir(parents=True)
    for name, intensity in (("mobilenetv3l-gld23k", 5.5), (RESNET, 35.0)):
        network, lines = find_known_network(name), compute_rooflines(TRUTH, modes(), intensity)
        assert network is not None
        rows = ["cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w,label"]
        for size in (1, 8, 32):
            batch = build_roofline_batch(network, size)
            seconds = compute_batch_times(lines, batch).total_s
            joules = batch_energy_j(lines, batch, seconds)
            for mode, s, j in zip(modes(), seconds, joules, strict=True):
                knobs = f"{mode.cores},{1e3 * mode.cpu_mhz:.0f},{1e6 * mode.gpu_mhz:.0f},{1e6 * mode.mem_mhz:.0f}"
                rows.append(f"{knobs},{size},{1e3 * s:.9g},{j / s:.9g},measured")
        (into / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return into


def test_constants_are_fitted_to_the_tables_in_a_folder(tmp_path):
    folder = write_tables(tmp_path)
    found = analyse_roofline(RooflineOptions(RESNET, "agx-orin", batch_size=16, profiles=folder))
    lines, network = compute_rooflines(TRUTH, found.basis.modes, 35.0), find_known_network(RESNET)
    assert network is not None
    truth = compute_batch_times(lines, build_roofline_batch(network, 16)).total_s
    assert float(np.median(np.abs(found.batch_times.total_s / truth - 1))) < 0.02
    assert len(found.basis.modes) == len(modes())
    assert f"{RESNET} at batch 1/8/32" in found.basis.constants.source
    assert analyse_roofline(RooflineOptions(RESNET, "agx-orin", profiles=folder.parent)).basis.constants.source


def test_the_page_has_both_rooflines_the_plane_and_its_labels(tmp_path):
    page = tmp_path / "page.html"
    network(RESNET, board="agx-orin", mode="8/1344/726.75/3199", batch_size=4, html=page)
    text = page.read_text(encoding="utf-8")
    for wanted in ("Time roofline", "Energy roofline", "Time and energy of all modes", "calibrated", "requested"):
        assert wanted in text
    charts = charts_of(text)
    assert list(charts) == ["time", "energy", "plane"]
    frames = charts["time"]["frames"]
    assert frames[0]["label"].startswith("8c/1344/726.75/3199 MHz")
    assert any("MAXN" in frame["label"] for frame in frames)
    assert len(frames) > 5
    network(RESNET, board="agx-orin", html=page)  # its own page may be replaced


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (RooflineOptions(RESNET, "agx-orin", batch_size=0), "--batch-size"),
        (RooflineOptions(RESNET, "no-board"), "--board"),
        (RooflineOptions(RESNET, "agx-orin", mode="1/2/3"), "--mode"),
        (RooflineOptions(RESNET, "agx-orin", mode="fastest"), "got 'fastest'; MAXN, MODE_15W"),
        (RooflineOptions(RESNET, "agx-orin", mode="12/1/1/1"), "one of the"),
        (RooflineOptions(RESNET, "agx-orin", max_slowdown=0.9), "--max-slowdown"),
        (RooflineOptions(RESNET, "nano", max_slowdown=0.9), "--max-slowdown"),
        (RooflineOptions(RESNET, "agx-orin", confidence=1.0), "--confidence: got 1; a number from 0.5 to below 1"),
        (RooflineOptions(RESNET, "agx-orin", profiles=Path("no-such-folder")), "--profiles"),
        (RooflineOptions("no-network", "agx-orin"), "no-network"),
    ],
)
def test_what_cannot_be_meant_is_one_line(asked, message):
    with pytest.raises(BadInput, match=message):
        analyse_roofline(asked)


def test_a_folder_without_tables_of_inference_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no table"):
        analyse_roofline(RooflineOptions(RESNET, "agx-orin", profiles=tmp_path))
    folder = write_tables(tmp_path)
    (folder / f"{RESNET}.csv").rename(folder / "unknown.csv")
    with pytest.raises(BadInput, match="named after a workload"):
        analyse_roofline(RooflineOptions(RESNET, "agx-orin", profiles=folder))


def test_an_emulated_boards_bench_is_written_with_its_label(tmp_path, capsys):
    out = tmp_path / "bench.json"
    bench(board="agx-orin", seconds=1.0, mode="12/2201.6/726.75/3199", seed=0, out=out)
    found = json.loads(out.read_text())
    assert found["label"] == "calibrated"
    assert found["mode"] == "12c/2201.6/726.75/3199 MHz"
    assert found["pi_0_w"] > 5
    assert "nothing was measured" in capsys.readouterr().out


def test_this_processors_bench_is_measured(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr("fedge.analysis.roofline.microbenchmark.ARRAY_MB", {"cpu": 1.0})
    monkeypatch.setattr("fedge.analysis.roofline.layer_benchmark.LAYER_BATCHES", {"cpu": (1,)})
    out = tmp_path / "cpu.json"
    bench(device="cpu", seconds=0.2, mode=None, seed=0, out=out)
    found = json.loads(out.read_text())
    assert found["label"] == "measured"
    assert found["tau_f"] > 0
    assert (found["eps_f"] is None) == ("not known" in found["note"])
    assert {"machine", "date", "torch", "threads", "precision"} == found["conditions"].keys()
    assert {"LSTM", "attention", "Adam"} <= {point["kind"] for point in found["layers"]}
    said = capsys.readouterr().out
    assert "depthwise convolution" in said
    assert "1 thread, float32" in said or "threads, float32" in said


@pytest.mark.parametrize(
    ("device", "seconds", "mode"), [("cpu", 0.0, None), ("cpu", 1.0, "1/2/3/4"), ("nothing", 1.0, None)]
)
def test_a_bench_that_cannot_be_meant_is_one_line(device, seconds, mode):
    with pytest.raises(BadInput):
        bench(device=device, seconds=seconds, mode=mode, seed=0, out=None)
