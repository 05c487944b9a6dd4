"""The served network: scores of its own weights, on images of its own or given, and no trace in a training's bits."""

import hashlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from fake_worker import LIMIT_S  # noqa: E402
from test_trainer import CUDA, OPTIONS, SHARE, noise, task_of, with_batch_norm  # noqa: E402
from threaded_worker import ThreadedWorker, error_of  # noqa: E402

from fedge.worker.refusal import BadCall  # noqa: E402
from fedge.worker.service_network import BadScores, ServiceNetwork  # noqa: E402
from fedge.worker.tasks import make_builtin_task  # noqa: E402
from fedge.worker.trainer import Trainer  # noqa: E402
from fedge.worker.trainer_backend import make_torch_backend  # noqa: E402
from fedge.worker.worker_client import WorkerClient  # noqa: E402


class First(torch.nn.Module):
    """Scores the first image alone."""

    def forward(self, x):
        return x.flatten(1)[:1]


class Dropping(torch.nn.Linear):
    """Draws random numbers although it is only asked for scores."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x.flatten(1), 0.5, True))


def dropping(shape):
    return Dropping(shape.channels * shape.side**2, shape.classes)


NOISE = {"synthetic": {"samples": 64, "channels": 1, "side": 8, "classes": 10}}
DIGITS = {"builtin": "digits-cnn"}
DICE = """
import torch

class Dice(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(shape.channels)
        self.last = torch.nn.Linear(shape.channels * shape.side ** 2, shape.classes)

    def forward(self, x):
        return self.last(torch.nn.functional.dropout(self.norm(x), 0.5, True).flatten(1)) + torch.rand(1)

def model(shape):
    return Dice(shape)
"""


SLOW = """
import time, torch

class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.03)
        return x.flatten(1)[:, :3]

def model(shape):
    return Slow()
"""


def file_task(source):
    return {"name": "task.py", "source": source, "sha256": hashlib.sha256(source.encode()).hexdigest()}


def dice():
    return file_task(DICE)


def scored(trainer, arrays, x):
    """The scores that the trainer's own network would give."""
    net = trainer.task.build(trainer.shape).eval()
    net.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    with torch.no_grad():
        return net(trainer._feed.normalize(torch.from_numpy(x)).cpu()).numpy()


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_scores_are_those_of_the_arrays_given(device):
    data = noise()
    trainer = Trainer(task_of(with_batch_norm), data, "cpu")
    training = trainer.start(trainer.initial_arrays(1), SHARE, 5, OPTIONS)
    training.advance(4)
    arrays = training.result().arrays
    served = ServiceNetwork(trainer.task, data, device, arrays, most=8)
    x = data.test_x[:5]
    np.testing.assert_allclose(served.scores(list(x)), scored(trainer, arrays, x), rtol=1e-4, atol=1e-4)
    # Batches smaller and larger afterwards, whose memory is the same.
    np.testing.assert_allclose(served.scores(list(x[3:4])), scored(trainer, arrays, x[3:4]), rtol=1e-4, atol=1e-4)


def test_images_of_its_own_are_the_sources():
    data = noise()
    served = ServiceNetwork(task_of(with_batch_norm), data, "cpu", most=200)
    mixed = served.scores([None, data.train_x[7], None])
    own = served.scores(list(data.train_x))
    np.testing.assert_allclose(mixed, own[[1, 7, 2]], rtol=1e-5, atol=1e-5)
    assert np.unique(served.scores([None] * 64).round(4), axis=0).shape[0] > 32


def test_a_seed_fixes_a_network_that_is_freshly_made():
    data, x = noise(), list(noise().test_x[:3])
    made = [ServiceNetwork(task_of(with_batch_norm), data, "cpu", seed=seed, most=4).scores(x) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


def test_arrays_of_another_model_and_scores_that_are_none_are_refused():
    with pytest.raises(BadCall, match="model arrays"):
        ServiceNetwork(task_of(with_batch_norm), noise(), "cpu", {"w": np.zeros(3)})
    for net in (torch.nn.Flatten(0), First()):
        served = ServiceNetwork(task_of(lambda shape, net=net: net), noise(), "cpu", most=4)
        with pytest.raises(BadScores, match="a row of scores for each image"):
            served.scores([None, None])


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_scoring_leaves_the_random_state_as_it_was(device):
    served = ServiceNetwork(task_of(dropping), noise(), device, most=4)
    before = torch.random.get_rng_state()
    served.scores([None] * 4)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.fixture
def client(tmp_path):
    worker = ThreadedWorker(tmp_path, parts=make_torch_backend())
    with WorkerClient(worker.path, 6 * LIMIT_S) as client:
        yield client
        client.unserve()  # its thread lives on, and a process has one random state


def trained(client, task, arrays=None, cuts=(7, 1, 60)):
    client.load(task, NOISE, "cpu")
    options = {"steps": sum(cuts), "batch_size": 8, "learning_rate": 0.05}
    begin = {"seed": 3, "options": options}
    for number, steps in enumerate(cuts):
        last = number == len(cuts) - 1
        reply, got = client.train(begin if number == 0 else None, arrays, steps=steps, finish=last)
    return reply, got


@pytest.mark.parametrize("task", [DIGITS, dice()], ids=["digits", "dice"])
def test_a_training_with_services_beside_it_has_the_same_bits(client, task):
    _, alone = trained(client, task)
    arrivals = {"kind": "poisson", "rate_hz": 1000}
    client.serve("dice", dice(), 4, 0.02, arrivals=arrivals, data=NOISE)
    client.serve("digits", DIGITS, 4, 0.02, arrivals=arrivals, arrays=None, data=NOISE)
    reply, beside = trained(client, task)
    assert all(reply["service"][name]["batches"] for name in ("dice", "digits"))
    assert list(alone) == list(beside)
    assert all(np.array_equal(alone[name], beside[name]) for name in alone)


def test_time_of_serving_is_no_time_of_a_minibatch(client):
    client.load(DIGITS, NOISE, "cpu")
    client.serve("slow", file_task(SLOW), 1, 0.05, arrivals={"kind": "constant", "rate_hz": 15})
    options = {"steps": 300, "batch_size": 8, "learning_rate": 0.05}
    reply, _ = client.train({"seed": 3, "options": options}, steps=300)
    done = reply["service"]["slow"]
    assert done["batches"] >= 3
    assert done["busy_s"] == pytest.approx(reply["spent"]["serving_s"])
    assert done["busy_s"] >= 0.03 * done["batches"]
    assert sum(reply["seconds"]) < reply["spent"]["working_s"] + 0.5 * done["busy_s"]


def test_arrays_that_are_sent_are_those_that_answer(client):
    client.load(DIGITS, NOISE, "cpu")
    _, arrays = trained(client, DIGITS)
    client.serve("fresh", DIGITS, 2, 0.5, seed=4, data=NOISE)
    client.serve("sent", DIGITS, 2, 0.5, arrays, data=NOISE)
    x = noise().test_x[:2]
    sent, _ = client.request("sent", x)
    np.testing.assert_allclose(
        sent, scored(Trainer(make_builtin_task("digits-cnn"), noise(), "cpu"), arrays, x), rtol=1e-4, atol=1e-4
    )
    assert not np.allclose(sent, client.request("fresh", x)[0])
    wrong = {"w": np.zeros(3, np.float32)}
    assert "model arrays" in error_of(client.serve, "wrong", DIGITS, 2, 0.5, wrong, data=NOISE).text


def test_without_a_source_images_are_of_what_is_loaded_or_made_in_the_tasks_shape(client):
    assert "data: got none, and nothing is loaded" in error_of(client.serve, "dice", dice(), 2, 0.5).text
    client.load(DIGITS, NOISE, "cpu")
    client.serve("dice", dice(), 2, 0.5)
    assert client.request("dice", noise().test_x[:1])[0].shape == (1, 10)
    assert client.serve("large", {"builtin": "cifar10-cnn"}, 2, 0.5)["classes"] == 10
    assert client.request("large", np.zeros((1, 3, 32, 32), np.uint8))[0].shape == (1, 10)
