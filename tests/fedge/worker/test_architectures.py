"""Every network fits the images it is used for, and torchvision can be imported through its one door."""

import importlib.util
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from fedge.worker import builtin_tasks  # noqa: E402  torch first
from fedge.worker.architectures import MODELS  # noqa: E402
from fedge.worker.tasks import BadTask, Shape, make_builtin_task  # noqa: E402

OWN = ("digits-cnn", "lenet5", "small-cnn")
SMALL_IMAGES = ("resnet18", "mobilenet-v3-small", "mobilenet-v3-large")
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
with_torchvision = pytest.mark.skipif(not HAS_TORCHVISION, reason="needs torchvision")


def run(program):
    """Exit code and output, both streams."""
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode()


def scores_of(name, shape):
    with torch.no_grad():
        return MODELS[name](shape).eval()(torch.zeros(2, shape.channels, shape.side, shape.side))


def parameters_of(name, shape):
    return sum(w.numel() for w in MODELS[name](shape).parameters())


@pytest.mark.parametrize("shape", [Shape(1, 28, 10), Shape(3, 32, 10), Shape(1, 28, 4)], ids=str)
@pytest.mark.parametrize("name", [*OWN, *(pytest.param(name, marks=with_torchvision) for name in SMALL_IMAGES)])
def test_a_network_for_small_images_gives_a_score_per_class(name, shape):
    assert scores_of(name, shape).shape == (2, shape.classes)


def test_a_network_for_texts_ignores_padding_and_predicts_a_character_from_those_before_it():
    classifier = MODELS["text-transformer"](Shape(9, 9, 4, (9,))).eval()
    model = MODELS["character-lstm"](Shape(9, 9, 30, (9,))).eval()
    text = torch.tensor([[3, 5, 8, 0, 0, 0, 0, 0, 0], [0] * 9])
    with torch.no_grad():
        # Vectors of padding changed: no word's score may move.
        scores = classifier(text)
        classifier.words.weight[0] += 1.0
        assert torch.allclose(classifier(text), scores)
        assert scores.isfinite().all()
        scores, changed = model(text), model(torch.cat([text[:, :5], text[:, 5:] + 1], dim=1))
    assert scores.shape == (2, 30, 9)
    assert torch.equal(scores[:, :, :5], changed[:, :, :5])
    assert not torch.equal(scores, changed)


@with_torchvision
@pytest.mark.parametrize(
    ("name", "shape", "parameters_m"),
    [
        ("resnet18-imagenet", Shape(3, 64, 1000), 11.69),
        ("resnet50-imagenet", Shape(3, 64, 1000), 25.56),
        ("mobilenet-v3-large-imagenet", Shape(3, 64, 1000), 5.48),
        ("vit-b16", Shape(3, 32, 10), 85.66),
    ],
)
def test_a_profiled_network_is_the_published_one(name, shape, parameters_m):
    assert scores_of(name, shape).shape == (2, shape.classes)
    assert parameters_of(name, shape) / 1e6 == pytest.approx(parameters_m, abs=0.01)


def test_every_built_in_task_names_a_network_and_a_shape_that_exist():
    assert {network.model for network in builtin_tasks.NETWORKS.values()} == set(MODELS)
    assert {network.dataset for network in builtin_tasks.NETWORKS.values()} == set(builtin_tasks.SHAPES)


def test_the_digits_network_is_small():
    assert parameters_of("digits-cnn", Shape(1, 8, 10)) == 6186


@pytest.mark.skipif(HAS_TORCHVISION, reason="torchvision is here")
def test_a_missing_torchvision_is_told_with_the_networks_that_need_none():
    with pytest.raises(BadTask, match=r"torchvision: got none for torch .*; the torchvision that belongs .*lenet5"):
        make_builtin_task("resnet18-imagenet").build(Shape(3, 224, 1000))


@pytest.mark.slow
def test_the_same_is_told_where_torchvision_cannot_be_imported():
    _, said = run(
        "import sys; sys.modules['torchvision'] = None\n"
        "from fedge.worker.tasks import BadTask, Shape, make_builtin_task\n"
        "try: make_builtin_task('cifar10-resnet18').build(Shape(3, 32, 10))\n"
        "except BadTask as error: print(error)\n"
    )
    assert "torchvision: got none for torch" in said


@pytest.mark.slow
@with_torchvision
def test_torchvision_imports_through_the_door_in_a_fresh_process_and_torchs_compiler_once_it_is_asked():
    code, said = run(
        "import sys\n"
        "from fedge.worker import torchvision_shim as door\n"
        "print(door.models.resnet18.__name__, door.datasets.MNIST.__name__, 'torch._dynamo' in sys.modules)\n"
        "with door._without_compiler():\n"
        "    import torch._dynamo.utils as kept\n"
        "    from torch._dynamo.utils import is_compile_supported as later\n"
        "    from torch._dynamo.utils import counters\n"
        "import torch._dynamo.utils as real\n"
        "print(later('cpu') == real.is_compile_supported('cpu'), counters is real.counters is kept.counters)\n"
        "print(sys.modules['torch._dynamo.utils'] is real)\n"
    )
    assert code == 0, said
    assert said.split() == ["resnet18", "MNIST", "False", "True", "True", "True"], (
        "the compiler takes longer than torch"
    )


@pytest.mark.slow
@with_torchvision
def test_the_door_is_needed_exactly_where_the_compiled_part_does_not_load():
    from fedge.worker import torchvision_shim

    code, said = run("import torchvision")
    assert (code == 0) == (torchvision_shim._declarations is None), said
    if code:
        assert "torchvision::nms does not exist" in said


@with_torchvision
def test_a_network_that_this_torchvision_lacks_is_told():
    from fedge.worker import torchvision_shim

    with pytest.raises(BadTask, match=r"got no vit_b_99 in torchvision .*; a newer torchvision"):
        torchvision_shim.require_function(torchvision_shim.models, "vit_b_99")


@with_torchvision
def test_operators_are_declared_only_where_the_compiled_part_does_not_load(monkeypatch):
    from fedge.worker import torchvision_shim

    def broken(path):
        raise OSError("undefined symbol")

    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    assert torchvision_shim._has_loadable_operators()
    monkeypatch.setattr(torch.ops, "load_library", broken)
    assert not torchvision_shim._has_loadable_operators()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torchvision_shim._has_loadable_operators()
