"""The supervisor, with real processes: every way to die is noticed within 2 s, told with its cause, and mended."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_worker import LIMIT_S, LONG, NOISE, begin, until
from threaded_worker import Background, W, error_of, training

from fedge.worker import supervisor
from fedge.worker.exit_causes import OomCounters
from fedge.worker.worker_client import WorkerClient, WorkerError

HERE = Path(__file__).resolve().parent
NOTICED_S = 2.0


class Worker:
    """A supervised worker with the fake trainer, in a folder that it makes itself."""

    def __init__(self, folder, *command, deaf_s=None):
        self.path = str(folder / "own" / "worker.sock")
        self.log = folder / "log"
        with self.log.open("wb") as log:
            own = [str(HERE / "fake_worker.py"), "supervise", self.path, *([] if deaf_s is None else [str(deaf_s)])]
            program = list(command) or own
            asked = [sys.executable, *program, *(["--socket", self.path] if command else [])]
            self.process = subprocess.Popen(asked, cwd=str(HERE.parents[2]), stdout=log, stderr=log)
        until(self.answers)

    def answers(self):
        try:
            return WorkerClient(self.path).status()
        except WorkerError:
            assert self.process.poll() is None, self.log.read_text()
            return None

    def trainer(self):
        """The trainer's process number."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return int(Path(children).read_text().split()[0])

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(LIMIT_S)


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path)
    yield worker
    worker.end()


@pytest.fixture
def client(worker):
    with WorkerClient(worker.path, LIMIT_S) as client:
        yield client


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def train(client, task):
    """The error that ends a long training."""
    client.load({"builtin": task}, NOISE)
    return error_of(client.train, begin(), W, steps=LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "cause", "says"),
    [
        (signal.SIGKILL, "killed", "from outside with SIGKILL"),
        (signal.SIGSTOP, "killed", "stopped (SIGSTOP)"),
    ],
)
def test_a_signal_during_a_training_is_told_within_two_seconds_and_the_worker_is_back(
    worker, client, number, cause, says
):
    client.load({"builtin": "plain"}, NOISE)
    job = training(client)
    sent_s = time.monotonic()
    os.kill(worker.trainer(), number)
    error = job.outcome()
    assert time.monotonic() - sent_s < NOTICED_S
    assert error.kind == "died"
    assert says in error.text
    until(lambda: client.status()["restarts"] == 1)
    status = client.status()
    assert status["restarts"] == 1
    assert status["last_exit"]["cause"] == cause
    assert client.load({"builtin": "plain"}, NOISE)["ok"]
    assert client.profile(1, 1)["ok"]


@pytest.mark.slow
def test_a_process_that_a_task_forked_ends_with_the_trainer_and_keeps_no_client_waiting(worker, client):
    helps = "helper = os.fork()\nif not helper:\n    time.sleep(60)\n    os._exit(0)\n"
    text = f"import os, time\n{helps}def model(shape): pass\n"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    client.load({"name": "forks.py", "source": text, "sha256": sha256}, NOISE)
    trainer = worker.trainer()
    helper = int(Path(f"/proc/{trainer}/task/{trainer}/children").read_text())
    job = training(client)
    sent_s = time.monotonic()
    os.kill(trainer, signal.SIGKILL)
    assert job.outcome().kind == "died"
    assert time.monotonic() - sent_s < NOTICED_S
    until(lambda: not alive(helper))


@pytest.mark.slow
def test_services_end_with_their_trainer_and_whoever_waits_for_them_is_told(worker, client):
    def stand():
        client.serve("s", {"builtin": "plain"}, 4, 60.0, data=NOISE)

    image = np.zeros((1, 1, 2, 2), np.uint8)
    stand()
    asked = Background(client.request, "s", image)
    until(lambda: client.status()["services"]["s"]["waiting"] == 1)
    os.kill(worker.trainer(), signal.SIGKILL)
    error = asked.outcome()
    assert error.kind == "died"
    assert "serve again" in error.text
    until(lambda: client.status()["restarts"] == 1)
    assert client.status()["services"] == {}
    assert error_of(client.request, "s", image).kind == "no-task"
    stand()
    assert client.status()["services"]["s"]["failed"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "cause", "says"),
    [
        ("exit", "exit", "exit status 3; it said: the disk is full"),
        ("crash", "crashed", "Fatal Python error: Segmentation fault"),
    ],
)
def test_a_task_that_ends_the_process_is_told_with_its_last_words(client, task, cause, says):
    error = train(client, task)
    assert error.kind == "died"
    assert says in error.text
    assert client.status()["last_exit"]["cause"] == cause


@pytest.mark.slow
def test_a_task_that_takes_all_memory_is_an_oom_and_the_same_process_goes_on(worker, client):
    before = worker.trainer()
    error = train(client, "memory")
    assert error.kind == "oom"
    assert "a smaller batch" in error.text
    assert client.profile(1, 1)["ok"]
    assert worker.trainer() == before
    assert client.status()["restarts"] == 0


@pytest.mark.slow
def test_a_trainer_that_can_start_no_thread_any_more_is_replaced(tmp_path):
    full = Worker(tmp_path, deaf_s=10.0)
    try:
        with WorkerClient(full.path, LIMIT_S) as client:
            client.load({"builtin": "no-threads"}, NOISE)
            with contextlib.suppress(WorkerError):
                client.train(begin(), W, steps=1)
        until(lambda: (full.answers() or {}).get("restarts") == 1)
        # Python waits for ever for a thread that begins but has no memory to say so.
        texts = ("no thread can be started", "answered nobody")
        assert any(text in full.answers()["last_exit"]["text"] for text in texts)
    finally:
        full.end()


@pytest.mark.slow
def test_a_trainer_that_lives_and_answers_nobody_is_replaced(tmp_path):
    deaf = Worker(tmp_path, deaf_s=6.0)  # a trainer on a busy machine takes seconds to start
    try:
        with WorkerClient(deaf.path, LIMIT_S) as client:
            assert train(client, "deaf").kind == "died"
        until(lambda: (deaf.answers() or {}).get("restarts"))
        assert "answered nobody" in deaf.answers()["last_exit"]["text"]
    finally:
        deaf.end()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["broken", "broken-with-a-thread"])
def test_an_error_that_breaks_cuda_is_answered_and_followed_by_a_new_process(client, task):
    error = train(client, task)
    assert error.kind == "failed"
    assert "device-side assert" in error.text
    until(lambda: client.status()["restarts"] == 1)
    assert "only by a new process" in client.status()["last_exit"]["text"]


@pytest.mark.slow
def test_a_trainer_stopped_for_a_moment_goes_on(worker, client):
    client.load({"builtin": "plain"}, NOISE)
    os.kill(worker.trainer(), signal.SIGSTOP)
    os.kill(worker.trainer(), signal.SIGCONT)
    assert client.profile(1, 1)["ok"]
    assert client.status()["restarts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_ends_both_and_removes_the_socket(worker, number):
    trainer = worker.trainer()
    worker.process.send_signal(number)
    assert worker.process.wait(LIMIT_S) == 0
    assert not alive(trainer)
    assert list(Path(worker.path).parent.iterdir()) == []


@pytest.mark.slow
def test_the_trainer_dies_with_its_supervisor_and_the_next_one_takes_over(worker, tmp_path):
    trainer = worker.trainer()
    worker.process.kill()
    worker.process.wait(LIMIT_S)
    until(lambda: not alive(trainer))
    again = Worker(tmp_path)  # over the socket that was left
    again.end()


@pytest.mark.slow
def test_the_socket_is_for_owner_and_group_only_and_for_one_worker(worker):
    assert stat.S_IMODE(Path(worker.path).stat().st_mode) == 0o660
    assert stat.S_IMODE(Path(worker.path).parent.stat().st_mode) == 0o750
    second = subprocess.Popen(
        [sys.executable, "-m", "fedge.worker", "--socket", worker.path],
        cwd=str(HERE.parents[2]),
        stderr=subprocess.PIPE,
    )
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    assert b"another worker serves it" in said
    assert b"Traceback" not in said
    assert worker.answers()


def test_a_lock_that_a_worker_removed_at_its_end_is_no_lock(tmp_path, monkeypatch):
    path, asked = str(tmp_path / "worker.sock"), []
    flock = fcntl.flock

    def lock(file, how):
        if not asked:
            Path(f"{path}.lock").unlink()
        asked.append(file)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with supervisor.SocketClaim(path), pytest.raises(supervisor.UnusableSocket, match="another worker serves it"):
        supervisor.SocketClaim(path).__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_kernel_would_rather_kill_the_trainer_than_its_supervisor(worker):
    adjusted = Path(f"/proc/{worker.trainer()}/oom_score_adj").read_text()
    own = Path(f"/proc/{worker.process.pid}/oom_score_adj").read_text()
    assert int(adjusted) > int(own)


@pytest.mark.slow
def test_the_supervisor_loads_neither_numpy_nor_torch():
    program = "import sys, fedge.worker.supervisor; print([m for m in ('numpy', 'torch') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=str(HERE.parents[2])).strip() == b"[]"


def unusable(path):
    with pytest.raises(supervisor.UnusableSocket) as caught:
        supervisor.SocketClaim(str(path)).__enter__()
    return str(caught.value)


def test_a_socket_that_cannot_be_had_is_told_with_what_to_do(tmp_path):
    (tmp_path / "file.sock").write_text("precious")
    assert "something else of this name" in unusable(tmp_path / "file.sock")
    assert (tmp_path / "file.sock").read_text() == "precious"
    assert "at most 107 bytes" in unusable(tmp_path / ("x" * 120))
    assert "--socket PATH" in unusable(tmp_path / "file.sock" / "below.sock")


def test_a_left_socket_is_replaced(tmp_path):
    path = str(tmp_path / "left.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with supervisor.SocketClaim(path):
        assert WorkerClient(path)._connect(1.0).close() is None
    assert not Path(path).exists()


def test_the_kernels_counters_are_read_below_a_root(tmp_path):
    for path, text in {
        "proc/vmstat": "oom_kill 5\n",
        "proc/71/cgroup": "0::/board\n",
        "sys/fs/cgroup/board/memory.events": "oom_kill 2\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert supervisor.read_oom_counters(71, str(tmp_path)) == OomCounters(5, 2)
    assert supervisor.read_oom_counters(72, str(tmp_path)) == OomCounters(5, None)
    assert supervisor.read_oom_counters(71, str(tmp_path / "none")) == OomCounters(None, None)


TASK = """
import os
import torch

def model(shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape.channels * shape.side ** 2, shape.classes))

def loss(scores, labels):
    {}
    return torch.nn.functional.cross_entropy(scores, labels)
"""
ONE_PROCESS = pytest.mark.xdist_group("trainer")
REAL_NOISE = {"synthetic": {"samples": 40, "channels": 1, "side": 8, "classes": 3}}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """One for all its tests: most of what it costs is to import torch."""
    pytest.importorskip("torch", reason="the trainer itself needs torch")
    worker = Worker(tmp_path_factory.mktemp("real"), "-m", "fedge.worker", "--device", "cpu")
    with WorkerClient(worker.path, 60.0) as client:
        yield client
    worker.end()


def load_task(client, trouble):
    text = TASK.format(trouble)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return client.load({"name": "task.py", "source": text, "sha256": digest}, REAL_NOISE)


def short(steps=3):
    return {"seed": 0, "options": {"steps": steps, "batch_size": 8, "learning_rate": 0.1}}


@pytest.mark.slow
@ONE_PROCESS
def test_the_trainer_itself_trains_over_the_wire(real):
    assert real.load({"builtin": "digits-cnn"}, REAL_NOISE)["samples"] == 40
    again = real.load({"builtin": "digits-cnn"}, REAL_NOISE)
    assert again["warm"]
    assert again["labels"].shape == (40,)
    reply, arrays = real.train(short(), steps=3, share=np.arange(20), finish=True)
    assert reply["done"] == 3
    assert len(reply["seconds"]) == 3
    second, other = real.train(short(), arrays, steps=3, finish=True)
    assert second["first_step_after_s"] < 1.0
    assert any((other[name] != arrays[name]).any() for name in arrays)
    assert real.evaluate(other)["samples"] == 5
    assert len(real.profile(2, 4)["fetch_s"]) == 2
    assert len(real.profile(2, 4, "infer")["step_s"]) == 2


@pytest.mark.slow
@ONE_PROCESS
def test_the_trainers_own_troubles_are_told_and_each_leaves_a_usable_worker(real):
    restarts = real.status()["restarts"]
    for trouble, kind, says in [
        ("torch.empty(1 << 45)", "oom", "ran out of memory"),
        ("[][1]", "failed", "IndexError"),
        ("raise MemoryError('no more')", "oom", "ran out of memory"),
    ]:
        load_task(real, trouble)
        error = error_of(real.train, short(), steps=3)
        assert error.kind == kind
        assert says in error.text
        assert len(real.profile(1, 4, "infer")["step_s"]) == 1
    load_task(real, "os._exit(9)")
    error = error_of(real.train, short(), steps=3)
    assert error.kind == "died"
    assert "exit status 9" in error.text
    load_task(real, "pass")
    assert real.train(short(), steps=3, finish=True)[0]["done"] == 3
    assert real.status()["restarts"] == restarts + 1


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a CUDA device")
def test_on_a_gpu_it_trains_is_cancelled_and_survives_a_lack_of_memory(tmp_path):
    pytest.importorskip("torch", reason="the trainer itself needs torch")
    worker = Worker(tmp_path, "-m", "fedge.worker")
    try:
        with WorkerClient(worker.path, 120.0) as client:
            assert load_task(client, "torch.empty(1 << 42, device='cuda')")["device"].startswith("cuda")
            assert error_of(client.train, short(), steps=3).kind == "oom"
            client.load(
                {"builtin": "cifar10-resnet18"}, {"synthetic": dict(REAL_NOISE["synthetic"], channels=3, side=32)}
            )
            cuda = client.status()["cuda"]
            assert cuda["total_mb"] > cuda["used_mb"] > 0
            job = Background(client.train, short(LONG), steps=LONG)
            until(lambda: (client.status()["job"] or {}).get("done", 0) > 1)
            client.cancel()
            reply, _ = job.outcome()
            assert reply["stopped"] == "cancelled"
            reply, arrays = client.train(short(), steps=3, finish=True)
            assert reply["done"] == 3
            assert client.evaluate(arrays)["samples"] == 5
            assert client.status()["restarts"] == 0
    finally:
        worker.end()
