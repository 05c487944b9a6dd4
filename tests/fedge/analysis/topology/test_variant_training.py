"""A few real steps of training: the loss falls, what goes wrong is told, memory is read from the system."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedge.analysis.topology.variant_training import TrainingCheck, train_on_noise
from fedge.errors import RunFailed

SHAPE = (3, 8, 8)


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(288, 10))


def test_the_loss_of_a_small_network_falls_with_dropout_too() -> None:
    trained = train_on_noise(_module(), SHAPE)
    assert trained.is_loss_falling
    assert len(trained.losses) == 6


def test_every_head_that_answers_in_training_is_trained() -> None:
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


def test_a_loss_that_rises_or_is_not_finite_does_not_count_as_falling() -> None:
    assert not TrainingCheck((1.0, 2.0), 4, None).is_loss_falling
    assert not TrainingCheck((1.0, float("nan"), 0.5), 4, None).is_loss_falling
    assert TrainingCheck((1.0, 2.0, 0.5), 4, None).is_loss_falling


def test_a_step_that_cannot_be_made_is_told_in_one_line() -> None:
    with pytest.raises(RunFailed, match="a step of training failed"):
        train_on_noise(nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), SHAPE)


def test_the_growth_is_the_peak_after_beyond_that_before(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmPeak:\t9 kB\nVmHWM:\t  50000 kB\n", encoding="ascii")

    class Grows(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            (tmp_path / "status").write_text("VmHWM:\t  75000 kB\n", encoding="ascii")
            return super().forward(images.flatten(1))

    assert train_on_noise(Grows(192, 2), SHAPE, proc=tmp_path).grown_mb == pytest.approx(25.6)
    assert (tmp_path / "clear_refs").read_text(encoding="ascii") == "5"


def test_where_the_system_does_not_say_there_is_no_figure(tmp_path: Path) -> None:
    assert train_on_noise(_module(), SHAPE, proc=tmp_path / "nothing").grown_mb is None
