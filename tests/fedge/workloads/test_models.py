"""Every network fits the images it is used for, and torchvision can be imported through its one door."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from fedge.workloads import TASKS, vision
from fedge.workloads.models import MODELS, Shape


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shape", [Shape(1, 28, 10), Shape(3, 32, 10), Shape(1, 28, 4)], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_network_gives_a_score_per_class(name: str, shape: Shape) -> None:
    net = MODELS[name](shape)
    scores = net(torch.zeros(2, shape.channels, shape.side, shape.side))
    assert scores.shape == (2, shape.classes)


def test_every_task_names_a_network_that_exists() -> None:
    assert {spec.model for spec in TASKS.values()} == set(MODELS)


def test_the_digits_network_is_small() -> None:
    assert sum(w.numel() for w in MODELS["digits-cnn"](Shape(1, 8, 10)).parameters()) == 6186


def test_torchvision_imports_through_the_door_in_a_fresh_process() -> None:
    done = run(
        "from fedge.workloads.vision import models, datasets; print(models.resnet18.__name__, datasets.MNIST.__name__)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["resnet18", "MNIST"]


def test_the_door_is_needed_exactly_where_the_compiled_part_does_not_load() -> None:
    plain = run("import torchvision")
    assert (plain.returncode == 0) == (vision._declarations is None), plain.stderr
    if plain.returncode:
        assert "torchvision::nms does not exist" in plain.stderr


def test_nothing_is_declared_where_the_compiled_part_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    assert vision._compiled_part_loads()


def test_a_compiled_part_that_does_not_load_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> None:
        raise OSError("undefined symbol")

    monkeypatch.setattr(torch.ops, "load_library", broken)
    assert not vision._compiled_part_loads()


def test_an_absent_torchvision_is_left_to_the_import_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert vision._compiled_part_loads()
