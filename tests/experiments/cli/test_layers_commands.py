"""``fedge layers`` shows a network's totals, writes what is a MODEL again, and is loud about what it did not count."""

import json

import pytest
from contracts.shown import shown_text
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.cli.network_commands import layers
from experiments.report.analysis.network_terminal import print_layer_summary
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import find_known_network
from fedge.costs.layers.network_source import cost_by_kind, list_costliest_layers, summarize_layers


def resnet() -> NetworkCost:
    network = find_known_network("resnet50-imagenet")
    assert network is not None
    return network


def shown(network: NetworkCost, batch_size: int = 1, kind: str = "infer", top: int = 3) -> str:
    return shown_text(print_layer_summary, summarize_layers(network, batch_size, kind, top), width=120)


def test_the_totals_of_a_batch_are_shown_with_what_they_are_made_of():
    text = shown(resnet(), 16)
    assert "inference of 16 x 3x224x224" in text
    assert "131.30 GFLOP" in text
    assert "16 x 8.2063 GFLOP" in text
    assert "102.12 MB of weights + 16 x 234.64 MB of activations" in text
    assert "25,557,032" in text


@pytest.mark.parametrize("kind", ["infer", "train"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_kinds_and_the_layers_add_up_to_the_network(kind, batch_size):
    network = resnet()
    work = network.batch_work(batch_size, kind)
    for rows in (cost_by_kind(network, batch_size, kind), list_costliest_layers(network, batch_size, kind, 10**6)):
        assert sum(row.flop for row in rows) == pytest.approx(work.flop)
        assert sum(row.bytes for row in rows) == pytest.approx(work.bytes)
        assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)


def test_the_json_is_a_model_again(tmp_path, capsys):
    path = tmp_path / "net.json"
    layers("digits-cnn", batch_size=4, input_shape=None, kind="infer", out=path, top=0)
    first = capsys.readouterr().out
    layers(str(path), batch_size=4, input_shape=None, kind="infer", out=None, top=0)
    assert capsys.readouterr().out == first
    assert json.loads(path.read_text(encoding="utf-8"))["totals"]["parameters"] == 6186
    layers(
        "digits-cnn", batch_size=4, input_shape=None, kind="infer", out=path, top=0
    )  # its own earlier output may be replaced


def test_what_is_not_counted_is_said_on_the_error_stream(tmp_path, monkeypatch, capsys):
    program = (
        "import torch\nclass Odd(torch.nn.Module):\n    def forward(self, x):\n        return torch.linalg.qr(x)[0]\n"
    )
    (tmp_path / "odd_network.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    layers("odd_network:Odd", batch_size=1, input_shape="4x4", kind="infer", out=tmp_path / "odd.json", top=3)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("NOT COUNTED: linalg_qr.")
    assert json.loads((tmp_path / "odd.json").read_text(encoding="utf-8"))["unknown"] == ["linalg_qr"]


def test_the_command_takes_its_options():
    done = CliRunner().invoke(
        app, ["layers", "digits-cnn", "--batch-size", "8", "--input-shape", "1x16x16", "--kind", "train", "--top", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "a training step of 8 x 1x16x16" in done.output
