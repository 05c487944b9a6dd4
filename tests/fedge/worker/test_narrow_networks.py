"""Narrow networks: a part of the full one, proved so, or refused."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("torch")

import pytest
import torch
from torch import nn

from fedge.worker import architectures, narrow_networks
from fedge.worker.narrow_networks import CannotNarrow, narrow_network
from fedge.worker.refusal import Refusal
from fedge.worker.subnetwork_arrays import array_shapes, leading_slices, take_leading, write_leading
from fedge.worker.task_shape import Shape

pytest.importorskip("torch")

from fedge.worker import builtin_tasks, sources, tasks
from fedge.worker.optimizers import TrainingOptions
from fedge.worker.trainer import Trainer

SMALL = Shape(3, 32, 10)
BUILT_IN = ["digits-cnn", "lenet5", "small-cnn"]
VISION = ["resnet18", "mobilenet-v3-small"]


def arrays(net):
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


def build(name):
    torch.manual_seed(5)
    return architectures.MODELS[name](SMALL)


@pytest.mark.parametrize("width", [0.75, 0.5, 0.25])
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_narrow_network_holds_the_leading_blocks_of_the_full_one(name, width):
    full = build(name)

    narrow = narrow_network(full, width, SMALL)

    own, whole = arrays(narrow), arrays(full)
    for block, place in leading_slices(array_shapes(whole), array_shapes(own)).items():
        assert np.array_equal(own[block], whole[block][place])
    assert sum(a.size for a in own.values()) < width * sum(a.size for a in whole.values()) * 1.05
    images = torch.randn(4, 3, 32, 32)
    assert narrow(images).shape == (4, 10)


@pytest.mark.parametrize("name", VISION)
def test_residual_depthwise_and_squeezing_layers_are_narrowed_too(name):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not here")
    full = build(name)

    narrow = narrow_network(full, 0.5, SMALL)

    assert leading_slices(array_shapes(arrays(full)), array_shapes(arrays(narrow)))
    narrow.train()
    narrow(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(w.grad is not None for w in narrow.parameters())


def test_with_zeros_elsewhere_the_full_network_says_what_the_narrow_one_says():
    full = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    narrow = narrow_network(full, 0.5, SMALL)
    for module in narrow.modules():
        module._forward_pre_hooks.clear()  # what scales the inputs up
    zeros = {name: 0 * value for name, value in arrays(full).items()}
    for name, tensor in full.state_dict().items():
        tensor.copy_(torch.as_tensor(write_leading(zeros, arrays(narrow))[name]))

    images = torch.randn(4, 3, 32, 32)

    with torch.no_grad():
        np.testing.assert_allclose(full(images).numpy(), narrow(images).numpy(), rtol=1e-4, atol=1e-5)


def test_group_normalisation_keeps_whole_groups():
    full = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 900, 10))

    narrow = narrow_network(full, 0.3, SMALL)

    assert narrow[0].out_channels == 8  # 4.8 channels are two groups of four
    assert (narrow[1].num_groups, narrow[1].num_channels) == (2, 8)
    assert narrow[4].in_features == 8 * 900


def test_inputs_of_which_some_are_missing_are_scaled_up():
    full = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6), nn.Linear(6, 10))
    narrow = narrow_network(full, 0.5, SMALL)
    hidden = torch.ones(1, 3)

    with torch.no_grad():
        got = narrow[2](hidden)
        want = 2.0 * hidden @ narrow[2].weight.t() + narrow[2].bias

    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


class SideBySide(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        return self.out(torch.cat([self.a(x), self.b(x)], 1).mean((2, 3)))


class OwnWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.a, self.out = nn.Conv2d(3, 8, 1), nn.Linear(8, 10)

    def forward(self, x):
        return self.out(self.a(x).mean((2, 3)) * self.scale)


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (SideBySide(), "branches side by side"),
        (OwnWeights(), "OwnWeights"),
        (
            nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(7200, 10)),
            "2 groups",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), "at least two"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.LayerNorm(8), nn.Linear(8, 10)), "LayerNorm"),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3)), "network"),
    ],
)
def test_what_would_be_no_part_of_the_full_network_is_refused_with_the_reason(net, told):
    with pytest.raises(CannotNarrow) as caught:
        narrow_network(net, 0.5, SMALL)
    assert told in str(caught.value)
    assert caught.value.kind == "narrow"


@pytest.mark.parametrize("width", [0.0, -1.0, 1.5])
def test_a_width_that_is_no_part_is_refused(width):
    with pytest.raises(CannotNarrow, match="width"):
        narrow_network(build("digits-cnn"), width, SMALL)


def test_neither_the_full_network_nor_the_random_state_is_touched():
    full = build("small-cnn")
    before, state = arrays(full), torch.random.get_rng_state()

    narrow_network(full, 0.5, SMALL)

    assert all(np.array_equal(value, before[name]) for name, value in arrays(full).items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert full.training
    assert narrow_networks.SCORE_TOLERANCE < 0.01


DATA = sources.read(builtin_tasks.synthetic_source("synthetic-cnn", 64))


@pytest.fixture(scope="module")
def trainer():
    return Trainer(tasks.make_builtin_task("synthetic-cnn"), DATA, threads=1)


def trained(trainer, width, steps=3, seed=4, arrays=None):
    training = trainer.start(
        arrays or trainer.initial_arrays(1), None, seed, TrainingOptions(steps, 8, 0.05, width=width)
    )
    training.advance(steps)
    return training.result()


def test_training_gives_the_leading_blocks_moved(trainer):
    start = trainer.initial_arrays(1)

    result = trained(trainer, 0.5)

    assert array_shapes(result.arrays) == trainer.narrow_shapes(0.5)
    places = leading_slices(array_shapes(start), array_shapes(result.arrays))
    assert all(not np.array_equal(value, start[name][places[name]]) for name, value in result.arrays.items())
    assert result.loss > 0


def test_the_same_seed_gives_the_same_bits_whatever_was_trained_between(trainer):
    first = trained(trainer, 0.5)
    trained(trainer, 0.25)
    trained(trainer, 1.0)
    again = trained(trainer, 0.5)
    assert all(np.array_equal(value, again.arrays[name]) for name, value in first.arrays.items())


def test_a_leading_part_trains_like_the_whole_and_one_that_is_too_narrow_or_of_another_model_is_refused(trainer):
    start = trainer.initial_arrays(1)
    parts = {width: take_leading(start, trainer.narrow_shapes(width)) for width in (0.75, 0.5)}
    whole, *results = (trained(trainer, 0.5, arrays=arrays) for arrays in (start, *parts.values()))
    for result in results:
        assert all(np.array_equal(value, result.arrays[name]) for name, value in whole.arrays.items())
    other = {name: np.zeros([n + 1 for n in np.shape(value)], np.float32) for name, value in start.items()}
    for wrong, width in ((parts[0.5], 0.75), (parts[0.5], 1.0), (other, 0.5)):
        with pytest.raises(Refusal):
            trained(trainer, width, arrays=wrong)


def test_a_full_training_is_not_touched_by_narrow_ones():
    fresh, used = (Trainer(tasks.make_builtin_task("synthetic-cnn"), DATA, threads=1) for _ in range(2))
    trained(used, 0.25)
    want, got = trained(fresh, 1.0), trained(used, 1.0)
    assert all(np.array_equal(value, got.arrays[name]) for name, value in want.arrays.items())


def test_a_network_that_cannot_be_narrow_is_refused():
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not here")
    trainer = Trainer(
        tasks.make_builtin_task("vit-b16-cifar10"),
        sources.read({"synthetic": {"samples": 4, "channels": 3, "side": 32, "classes": 2}}),
        threads=1,
    )
    with pytest.raises(CannotNarrow, match="VisionTransformer"):
        trainer.narrow_shapes(0.5)
