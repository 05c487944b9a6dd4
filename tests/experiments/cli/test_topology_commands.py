"""``fedge topology`` finds, prints and writes variants that fit, and says what stands in the way."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from contracts.crashing import disk_full

from experiments.cli import network_commands
from experiments.cli.command_output import Outputs
from experiments.cli.network_commands import print_variants, show
from fedge.analysis.topology import topology_result, variant_files
from fedge.analysis.topology.topology_result import TopologyOptions, TopologyResult, find_variants
from fedge.analysis.topology.variant_files import TrainingCheck
from fedge.client.memory_scaling import estimate_usable_mb
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_source import load_network_cost
from fedge.costs.memory.step_need import StepNeed
from fedge.errors import BadInput, RunFailed
from fedge.types import DeviceSpec

pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
MODEL = "squeezenet1_1"
ASKED = TopologyOptions(MODEL, "tx2", batch_size=16, max_memory_mb=150.0, input_shape="3x64x64")


@cache
def _whole() -> NetworkCost:
    return load_network_cost(MODEL, (3, 64, 64))


def _need(network: NetworkCost, device: DeviceSpec, batch_size: int) -> StepNeed:
    """Memory and time that grow with activations and work; of the whole network at batch 16 250 MB and 2 s."""
    size, work = network.activations / _whole().activations, network.flop / _whole().flop
    return StepNeed(50.0 + 12.5 * batch_size * size, 0.125 * batch_size * work, 0.1, 0.1, "estimated", "a fake")


@pytest.fixture(autouse=True)
def _fake_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_result, "predict_step_need", _need)


def _answer(asked: TopologyOptions = ASKED) -> TopologyResult:
    return find_variants(asked, estimate_usable_mb)


def test_without_a_limit_memory_is_a_share_of_the_boards():
    answer = _answer(replace(ASKED, max_memory_mb=None))
    assert answer.limits.memory_mb == pytest.approx(5600.0)
    assert answer.memory_limit_source == "70 % of the board's 8 GB"
    assert answer.variants[0].variant.plan == {}


def test_variants_that_are_the_same_network_are_listed_once():
    answer = _answer(replace(ASKED, network="digits-cnn", input_shape=None, max_memory_mb=5000.0, variants=50))
    plans = [one.variant.plan for one in answer.variants]
    assert 1 < len(plans) < 50
    assert all(a != b for i, a in enumerate(plans) for b in plans[:i])


def test_everything_is_written_and_comes_back(tmp_path, capsys):
    folder, out, html = tmp_path / "out", tmp_path / "t.json", tmp_path / "t.html"
    print_variants(replace(ASKED, max_step_s=1.5, variants=2), Outputs(False, out, html), folder=folder)
    told = capsys.readouterr().out
    assert "does not fit" in told
    assert "MAXN" in told
    assert "estimated (a fake)" in told
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [Path(one).parent for one in data["folders"]] == [folder, folder]
    for row, place in zip(data["variants"], data["folders"], strict=True):
        variant = variant_files.read_variant(Path(place))
        assert variant.cost.parameters == row["parameters"]
        assert (
            sum(one.numel() for one in variant_files.load_variant_module(Path(place)).parameters()) == row["parameters"]
        )
    page = html.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert all(f'id="chart-{key}"' in page for key in ("memory", "time", "batches", "sample", "layers"))
    print_variants(replace(ASKED, variants=1), Outputs(False, out, html))  # over its own earlier output


def test_a_variant_is_shown_layer_by_layer(tmp_path, capsys):
    print_variants(replace(ASKED, variants=1), Outputs(False), folder=tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    capsys.readouterr()
    show(folder, every=True, as_json=False)
    told = capsys.readouterr().out
    variant = variant_files.read_variant(folder)
    assert all(layer in told for layer in variant.plan)
    show(folder / "variant.json", every=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["model"] == MODEL


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_memory_mb": 52.0}, "--max-memory-mb: got 52 MB; with"),
        ({"max_step_s": 1e-4}, "--max-step-s: got 0.0001 s; with"),
        ({"max_memory_mb": 0.0}, "above 0"),
        ({"max_step_s": -1.0}, "above 0"),
        ({"network": "no-such-net"}, "NETWORK"),
        ({"board": "no-such-board"}, "--board"),
        ({"ranking": "magic"}, "l1, l2, random"),
        ({"batch_size": 0}, "--batch-size"),
        ({"round_to": 0}, "--round-to"),
        ({"variants": 0}, "--variants"),
        ({"variants": 1000}, "from 1 to 50"),
        ({"confidence": 1.0}, "--confidence"),
        ({"seed": -1, "ranking": "random"}, "--seed"),
        ({"input_shape": "3y8"}, "--input-shape"),
        ({"input_shape": "5x64x64"}, "--input-shape"),
    ],
)
def test_what_cannot_be_meant_or_met_is_one_line(change, told):
    with pytest.raises(BadInput) as caught:
        print_variants(replace(ASKED, **change), Outputs(False))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_where_nothing_fits_a_batch_size_that_would_is_named():
    with pytest.raises(BadInput, match=r"or --batch-size 8$"):
        _answer(replace(ASKED, batch_size=128, max_memory_mb=75.0))


def test_variants_go_into_no_folder_of_something_else(tmp_path):
    (tmp_path / "other").touch()
    with pytest.raises(BadInput, match="holds something"):
        print_variants(ASKED, Outputs(False), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(variant_files, "save_variant", disk_full)
    with pytest.raises(BadInput, match=r"--folder: .*No space left"):
        print_variants(ASKED, Outputs(False), folder=tmp_path / "out")


def test_a_training_whose_loss_does_not_fall_fails(monkeypatch):
    monkeypatch.setattr(network_commands, "_check_in_process", lambda folder: TrainingCheck((1.0, 2.0), 4, None))
    with pytest.raises(RunFailed, match="did not fall"):
        print_variants(ASKED, Outputs(False), check_training=True)


@pytest.mark.long
def test_the_largest_variant_is_really_trained(capsys, tmp_path):
    print_variants(ASKED, Outputs(False, tmp_path / "t.json"), check_training=True)
    assert "measured on this machine" in capsys.readouterr().out
    check = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["training_check"]
    assert check["falls"]
    assert check["losses"][-1] < check["losses"][0]


def test_the_command_line_loads_no_torch_for_its_help():
    program = (
        "import sys, experiments.cli.network_commands; print('torch' in sys.modules, 'torch_pruning' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
