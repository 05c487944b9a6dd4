"""``fedge select-board``: a ranking with labels, limits, JSON, and one line for what cannot be meant."""

import json

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import network_to_dict
from fedge.errors import BadInput


def _run(*args: str) -> str:
    done = CliRunner().invoke(app, ["select-board", *args], env={"COLUMNS": "160"}, catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_any_network_is_ranked_by_its_layers(tmp_path):
    out = tmp_path / "ranking.json"
    what = ("--workload", "mobilenet_v2", "--batch-size", "8", "--objective", "energy")
    _run(*what, "--board", "nano", "--board", "tx2", "--out", str(out))
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [offer["board"] for offer in data["offers"]] == sorted(
        ("nano", "tx2"), key=lambda b: next(o["energy_j"] for o in data["offers"] if o["board"] == b)
    )
    assert {offer["label"] for offer in data["offers"]} == {"estimated"}
    assert (data["batch_size"], data["workload"]) == (8, "mobilenet_v2")


def test_limits_that_no_board_holds_are_said_in_every_row():
    told = _run("--workload", "resnet18-imagenet", "--max-epoch-s", "1", "--board", "nano")
    assert "No board meets all limits" in told
    assert "above 1 s" in told


@pytest.mark.parametrize(
    ("args", "where"),
    [
        (("--workload", "resnet51"), "--workload"),
        (("--workload", "resnet18-imagenet", "--objective", "luck"), "--objective"),
        (("--workload", "resnet18-imagenet", "--board", "toaster"), "--board"),
        (("--workload", "resnet18-imagenet", "--max-power-w", "-3"), "--max-power-w"),
        (("--workload", "resnet18-imagenet", "--max-power-w", "nan"), "--max-power-w"),
        (("--workload", "resnet18-imagenet", "--max-power-w", "inf"), "--max-power-w"),
        (("--workload", "resnet50", "--input-shape", "axb"), "--input-shape"),
    ],
)
def test_what_cannot_be_meant_is_one_line(args, where):
    with pytest.raises(BadInput) as error:
        _run(*args)
    assert error.value.where == where


def test_a_measured_workload_with_other_images_is_another_one(tmp_path):
    out = tmp_path / "ranking.json"
    epochs = []
    for more in ((), ("--input-shape", "3x64x64")):
        _run("--workload", "resnet18-imagenet", "--board", "agx-orin", "--out", str(out), *more)
        data = json.loads(out.read_text(encoding="utf-8"))
        epochs.append((data["workload"], data["offers"][0]["label"], data["offers"][0]["epoch_s"]))
    assert epochs[0][:2] == ("resnet18-imagenet", "calibrated")
    assert epochs[1][:2] == ("resnet18-imagenet 3x64x64", "estimated")
    assert epochs[1][2] < epochs[0][2]


def test_a_network_that_computes_nothing_is_one_line(tmp_path):
    path = tmp_path / "nothing.json"
    nothing = NetworkCost("nothing", (3,), (), "by hand")
    path.write_text(json.dumps(network_to_dict(nothing)), encoding="utf-8")
    with pytest.raises(BadInput, match="computes nothing"):
        _run("--workload", str(path))
