"""A variant in a folder and back, without pickle, and a few real steps of its training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.analysis.topology.variant_files import (
    RECORD,
    WEIGHTS,
    load_variant_module,
    read_variant,
    save_variant,
    train_on_noise,
    variant_from_dict,
    variant_to_dict,
)
from fedge.costs.layers.network_cost import LayerCost, NetworkCost, Shape
from fedge.costs.layers.network_source import load_network_cost
from fedge.errors import BadInput, RunFailed
from fedge.worker.channel_cuts import LayerCut, cut_module

SHAPE = (3, 8, 8)


def _whole(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))


def _other(model: str, shape: Shape) -> tuple[nn.Module, Shape]:
    """The network of that name, with other weights than the variant was cut from."""
    assert (model, shape) == ("tiny", SHAPE)
    return _whole(seed=9), shape


def _variant() -> NetworkVariant:
    stays = (0, 3, 7)
    plan = {"0": LayerCut(None, stays, (3, 8)), "1": LayerCut(None, stays, (8, 8)), "3": LayerCut(stays, None, (8, 4))}
    cost = NetworkCost("tiny", SHAPE, (LayerCost("0", "conv", 1.0, 2.0, 3.0, 4.0, 5, 6),), "made up")
    return NetworkVariant("tiny", SHAPE, "l1", 1, 0.4, 0.5, 0.45, plan, cost)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "variants" / "tiny"
    save_variant(_variant(), cut_module(_whole(), _variant().plan), place)
    return place


def test_whatever_takes_a_network_takes_a_variants_record(folder):
    assert load_network_cost(str(folder / RECORD)) == _variant().cost

    for field, value in (("cost", None), ("input_shape", [3, 8]), ("input_shape", "3x8x8"), ("input_shape", None)):
        (folder / RECORD).write_text(json.dumps(variant_to_dict(_variant()) | {field: value}), encoding="utf-8")
        with pytest.raises(BadInput, match=rf"variant\.json: {field}"):
            load_network_cost(str(folder / RECORD))


def test_a_variant_comes_back_with_its_weights_and_its_record(folder):
    module = load_variant_module(folder, _other)
    expected = cut_module(_whole(), _variant().plan).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in module.state_dict().items())
    assert read_variant(folder) == read_variant(folder / RECORD) == _variant()


def test_the_folder_holds_json_and_safetensors_alone(folder):
    assert sorted(path.name for path in folder.iterdir()) == [RECORD, WEIGHTS]
    assert json.loads((folder / RECORD).read_text())["channels"]["0"] == {"outputs": [0, 3, 7], "of": [3, 8]}
    length = int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")
    assert "0.weight" in json.loads((folder / WEIGHTS).read_bytes()[8 : 8 + length])


def test_nothing_is_written_over(folder):
    with pytest.raises(BadInput, match="exists"):
        save_variant(_variant(), _whole(), folder)


def test_nothing_half_written_stays(tmp_path):
    class Broken(nn.Module):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        save_variant(_variant(), Broken(), tmp_path / "out" / "tiny")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "fedge-variant-9"}, "format"),
        ({"model": 3}, "model"),
        ({"channels": []}, "channels"),
        ({"channels": {"0": {"outputs": [0, 1]}}}, "channels.0"),
        ({"channels": {"0": {"outputs": [1, 0], "of": [3, 8]}}}, "channels.0.outputs"),
        ({"channels": {"0": {"outputs": [], "of": [3, 8]}}}, "channels.0.outputs"),
        ({"channels": {"0": {"outputs": [-1], "of": [3, 8]}}}, "channels.0.outputs"),
        ({"channels": {"0": {"outputs": [True], "of": [3, 8]}}}, "channels.0.outputs"),
        ({"channels": {"0": {"outputs": [0], "of": [3]}}}, "channels.0.of"),
        ({"channels": {"0": {"outputs": [0], "of": [3, "8"]}}}, "channels.0.of"),
        ({"channels": {"0": {"code": [0], "of": [3, 8]}}}, "channels.0"),
        ({"round_to": 0}, "round_to"),
        ({"channel_share": 1.5}, "channel_share"),
        ({"flop_share": "all"}, "flop_share"),
        ({"parameter_share": float("nan")}, "parameter_share"),
        ({"input_shape": [3, 0, 8]}, "input_shape"),
        ({"input_shape": []}, "input_shape"),
        ({"input_shape": [1, 8, 8]}, "input_shape"),
        ({"cost": {}}, "cost"),
    ],
)
def test_a_damaged_record_is_refused_by_its_field(change, field):
    with pytest.raises(BadInput) as caught:
        variant_from_dict({**variant_to_dict(_variant()), **change}, "variant.json")
    assert field in str(caught.value)


def test_a_shape_as_long_as_one_likes_is_refused_in_a_short_line():
    record = variant_to_dict(_variant())
    record["cost"]["input_shape"] = [9] * 2000
    with pytest.raises(BadInput, match=r"the shape in cost\.input_shape") as caught:
        variant_from_dict(record, "variant.json")
    assert len(str(caught.value)) < 500


def test_files_that_are_missing_or_damaged_are_refused(folder):
    with pytest.raises(BadInput, match="nowhere"):
        read_variant(folder.parent / "nowhere")
    (folder / WEIGHTS).write_bytes(b"\x80\x04pickle?")
    with pytest.raises(BadInput, match=WEIGHTS):
        load_variant_module(folder, _other)
    for text in ("", "{", "[" * 100_000):
        (folder / RECORD).write_text(text, encoding="utf-8")
        with pytest.raises(BadInput, match=RECORD):
            read_variant(folder)


def test_weights_of_other_shapes_are_refused(folder):
    data = variant_to_dict(_variant())
    data["channels"]["3"]["inputs"] = [0, 1]
    data["channels"]["0"]["outputs"] = data["channels"]["1"]["outputs"] = [0, 1]
    (folder / RECORD).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BadInput, match="shapes"):
        load_variant_module(folder, _other)


def test_a_record_for_a_network_of_other_widths_is_refused(folder):
    def wider(model: str, shape: Shape) -> tuple[nn.Module, Shape]:
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3)), shape

    with pytest.raises(BadInput, match=r"\(3, 16\)"):
        load_variant_module(folder, wider)


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(288, 10))


def test_the_loss_of_a_small_network_falls_with_dropout_too():
    trained = train_on_noise(_module(), SHAPE)
    assert trained.is_loss_falling
    assert len(trained.losses) == 6


def test_every_head_that_answers_in_training_is_trained():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(192, 5), nn.Linear(192, 7)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            flat = images.flatten(1)
            return self.a(flat), self.b(flat)

    module = Two()
    before = module.b.weight.detach().clone()
    assert train_on_noise(module, SHAPE).is_loss_falling
    assert not torch.equal(before, module.b.weight)


def test_a_step_that_cannot_be_made_is_told_in_one_line():
    with pytest.raises(RunFailed, match="a step of training failed"):
        train_on_noise(nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), SHAPE)


def test_the_growth_is_the_peak_after_beyond_that_before(tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t9 kB\nVmHWM:\t  50000 kB\n", encoding="ascii")

    class Grows(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            (tmp_path / "status").write_text("VmHWM:\t  75000 kB\n", encoding="ascii")
            return super().forward(images.flatten(1))

    assert train_on_noise(Grows(192, 2), SHAPE, proc=tmp_path).grown_mb == pytest.approx(25.6)
    assert (tmp_path / "clear_refs").read_text(encoding="ascii") == "5"


def test_where_the_system_does_not_say_there_is_no_figure(tmp_path):
    assert train_on_noise(_module(), SHAPE, proc=tmp_path / "nothing").grown_mb is None
