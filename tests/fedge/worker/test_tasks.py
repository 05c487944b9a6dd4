"""Tasks: built in by name, or a file that a run ships, whose mistakes are told with their line."""

import hashlib
import linecache
import subprocess
import sys

import numpy as np
import pytest

from fedge.worker import builtin_tasks, sources
from fedge.worker.tasks import BadTask, Shape, WrongHash, cross_entropy, make_builtin_task, task_from_source

torch = pytest.importorskip("torch", reason="needs torch")

PLAIN = """
from torch import nn

def model(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.side ** 2, shape.classes))
"""
FULL = (
    PLAIN
    + """
from fedge.worker.sources import make_synthetic as synthetic

def loss(scores, labels):
    return ((scores - nn.functional.one_hot(labels, scores.shape[1])) ** 2).mean()

def data(source):
    return synthetic(30, 1, source["side"], 4)
"""
)


def made(text, name="my_task.py"):
    return task_from_source(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())


def test_a_task_file_needs_only_a_model():
    task = made(PLAIN)
    scores = task.build(Shape(1, 5, 3))(torch.zeros(2, 1, 5, 5))

    assert scores.shape == (2, 3)
    assert (task.name, task.loss, task.data) == ("my_task.py", cross_entropy, None)
    assert task.sha256 == hashlib.sha256(PLAIN.encode("utf-8")).hexdigest()


def test_a_task_file_may_bring_its_loss_and_its_data():
    task = made(FULL)

    assert task.data({"side": 7}).train_x.shape == (30, 1, 7, 7)
    assert float(task.loss(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))) == 1.0


def test_another_hash_is_refused_and_the_file_not_run():
    with pytest.raises(WrongHash, match="send the file again") as caught:
        task_from_source("my_task.py", "raise SystemExit(9)", "0" * 64)
    assert caught.value.kind == "hash"


def test_two_files_are_two_modules_that_their_records_can_find():
    text = "import pickle\n" + PLAIN + "class Own:\n    pass\nclass_of = pickle.loads(pickle.dumps(Own))\n"
    before = set(sys.modules)
    for extra in ("", "# another\n"):
        made(extra + text)

    modules = [sys.modules[name] for name in set(sys.modules) - before if name.startswith("fedge_task_")]
    assert len(modules) == 2
    assert all(module.class_of is module.Own for module in modules)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef model(shape) = 3\n", r"my_task\.py, line 2: got SyntaxError from the file: "),
        ("x = 1\n\nimport no_such_module", "line 3: got ModuleNotFoundError from the file: No module named"),
        ("def f():\n    return 1 / 0\nf()", "line 2: got ZeroDivisionError from the file: division by zero"),
        ("import sys\nsys.exit(3)", "line 2: got SystemExit from the file: 3"),
        ("", r"my_task\.py: got no model\(shape\); a function model\(shape\)"),
        ("model = 3", r"got model that is 3; a function model\(shape\)"),
        (PLAIN + "loss = 'mse'", r"got loss that is 'mse'; a function loss\(scores, labels\)"),
        ("\0", "from the file"),
        (PLAIN + "data = []", r"got data that is \[\]; a function data\(source\)"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line_and_leaves_no_module_behind(text, said):
    before = set(sys.modules)
    with pytest.raises(BadTask, match=said) as caught:
        made(text)
    assert caught.value.kind == "bad-source"
    assert "no_such_module" not in text or set(sys.modules) == before


def built(task):
    return task.build(Shape(1, 2, 2))


READ = "from fedge.worker.sources import read\ndef data(source):\n    return read(source)\n"


@pytest.mark.parametrize(
    ("text", "call", "said"),
    [
        ("def model():\n    pass", built, r"got TypeError from model\(shape\)"),
        ("def model(shape):\n    return shape.width", built, r"line 2: got AttributeError from model\(shape\)"),
        ("def model(shape):\n    raise SystemExit(3)", built, r"line 2: got SystemExit from model\(shape\): 3"),
        ("def model(shape):\n    return 3", built, r"model\(shape\) that returns 'int'; a torch\.nn\.Module"),
        (
            PLAIN + "def loss(s, y):\n    return s.nothing\n",
            lambda task: task.loss(torch.zeros(1, 2), torch.zeros(1)),
            r"line 7: got AttributeError from loss\(scores, labels\)",
        ),
        (
            PLAIN + "def data(source):\n    return source['no']\n",
            lambda task: task.data({}),
            r"line 7: got KeyError from data\(source\): 'no'",
        ),
        (
            PLAIN + "def data(source):\n    return 5\n",
            lambda task: task.data({}),
            r"my_task\.py: data\(source\): got int instead of a data set",
        ),
        (
            PLAIN + "def loss(s, y):\n    return s\n",
            lambda task: task.loss(torch.zeros(3, 2), torch.zeros(3)),
            r"loss\(scores, labels\) that returns a tensor of shape \(3, 2\); a scalar tensor",
        ),
        (
            PLAIN + "def loss(s, y):\n    return 0.5\n",
            lambda task: task.loss(torch.zeros(3, 2), torch.zeros(3)),
            r"loss\(scores, labels\) that returns 'float'; a scalar tensor",
        ),
        (
            PLAIN + "def loss(s, y):\n    return s.detach().mean()\n",
            lambda task: task.loss(torch.zeros(3, 2, requires_grad=True), torch.zeros(3)),
            r"that returns a tensor that does not depend on the scores; a scalar tensor",
        ),
        (
            PLAIN + "def metric(s, y):\n    return 'good'\n",
            lambda task: task.metric(torch.zeros(3, 2), torch.zeros(3)),
            r"metric\(scores, labels\) that returns 'str'; a number, or a tensor of one",
        ),
        (
            PLAIN + "def optimizer(parameters, learning_rate, momentum):\n    return nn.Linear(1, 1)\n",
            lambda task: task.optimizer([], 0.1, 0.9),
            r"optimizer\(parameters, learning_rate, momentum\) that returns 'Linear'; an optimiser of torch\.optim",
        ),
        (PLAIN + READ, lambda task: task.data({"folder": "/no/such"}), "^/no/such: got no such folder"),
    ],
)
def test_a_mistake_in_a_function_is_told_when_it_is_called(text, call, said):
    task = made(text)
    with pytest.raises((BadTask, sources.BadSource), match=said):
        call(task)


def test_a_traceback_can_show_the_files_lines():
    made(PLAIN, "shown_task.py")
    assert linecache.getline("shown_task.py", 2) == "from torch import nn\n"


def test_a_built_in_task_is_found_by_name():
    task = make_builtin_task("digits-cnn")
    assert (task.name, task.sha256, task.loss, task.data) == ("digits-cnn", "", cross_entropy, None)
    assert task.build(Shape(1, 8, 10))(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet18", "known: digits-cnn, .*cifar10-resnet18, .*resnet18-imagenet"),
        ("yolov8n-coco", "another one: .* licence"),
    ],
)
def test_a_network_that_fedge_does_not_have_is_refused_with_the_known_ones_or_the_reason(name, said):
    with pytest.raises(BadTask, match=f"got '{name}'; {said}"):
        make_builtin_task(name)


def test_every_network_has_noise_of_its_shape():
    for name in builtin_tasks.NETWORKS:
        shape = builtin_tasks.builtin_shape(name)
        if shape.sample:
            with pytest.raises(BadTask, match="without data: its samples are no images"):
                builtin_tasks.synthetic_source(name)
            continue
        data = sources.read(builtin_tasks.synthetic_source(name, samples=2))
        assert data.train_x.shape == (2, shape.channels, shape.side, shape.side)
        assert data.train_x.dtype == np.uint8
        assert data.classes == shape.classes


def test_names_are_known_without_torch_and_numpy():
    code = (
        "import sys\nfrom fedge.worker import builtin_tasks as networks\nnetworks.builtin_shape('resnet18-imagenet')\n"
        "networks.synthetic_source('digits-cnn')\nprint([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    said = subprocess.check_output([sys.executable, "-c", code])
    assert said.strip() == b"[]"
