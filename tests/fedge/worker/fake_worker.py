"""A worker whose trainer is a fake without torch, in this process or, run as a program, in processes of its own.

As a program: ``supervise SOCKET [SECONDS]`` is the supervisor, anything else is the trainer process that it starts.
"""

import _thread
import contextlib
import ctypes
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np

from fedge.worker import supervisor, tasks, trainer_process
from fedge.worker.refusal import Refusal
from fedge.worker.trainer_backend import TorchFacts, TrainerBackend

STEP_S = 0.005
NOISE = {"synthetic": {"samples": 8, "channels": 1, "side": 8, "classes": 3}}
LONG = 100000
LIMIT_S = 20.0


def begin(steps=LONG, seed=0):
    """The fields with which a training begins."""
    return {"seed": seed, "options": {"steps": steps, "batch_size": 2, "learning_rate": 0.1}}


def until(condition):
    """Wait for a condition and return what it found."""
    ends_s = time.monotonic() + LIMIT_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < ends_s, "it did not happen"
        time.sleep(0.005)


class NoSuchTask(Refusal):
    kind = "bad-source"


class Task(NamedTuple):
    name: str
    sha256: str
    data: object = None


class Data(NamedTuple):
    classes: int


class Options(NamedTuple):
    steps: int
    batch_size: int
    learning_rate: float


class StepTime(NamedTuple):
    fetch_s: float
    step_s: float


class Result(NamedTuple):
    arrays: dict
    loss: float
    accuracy: float


class Trainer:
    """What a task's name says happens in each of its steps; the model is one number, to which each step adds one."""

    n_train = 8
    n_test = 4
    labels = np.arange(8)
    buffers = frozenset()
    made = 0
    recovered = 0

    def __init__(self, task, data, device):
        Trainer.made += 1
        self.task, self.device = task, device
        self.w = np.zeros(3, np.float32)

    def initial_arrays(self, seed):
        return {"w": np.full(3, seed, np.float32)}

    def start(self, arrays, share, seed, options):
        self.w = arrays["w"].copy()
        return Training(self, options.steps)

    def evaluate(self, arrays, stop):
        return float(arrays["w"][0]), 0.5

    def profile(self, steps, batch_size, kind, stop):
        done = []
        while len(done) < steps and not stop():
            done.append(StepTime(0.001, 0.002))
        return done

    def recover(self):
        Trainer.recovered += 1


class Inference:
    """Its scores are the image's first value, and that plus one; what its task's name says happens in each batch."""

    device = "cpu"
    shape = tasks.Shape(1, 2, 2)

    def __init__(self, task, data, device, arrays, seed, most):
        self.task, self.arrays, self.sizes = task, arrays, []

    def scores(self, images):
        self.sizes.append(len(images))
        if len(self.sizes) > 2 * 4:  # warmed up
            HAPPENINGS[self.task.name]()
        first = [0 if one is None else float(one.ravel()[0]) for one in images]
        return np.asarray([[one, one + 1] for one in first], np.float32)


class Training:
    def __init__(self, trainer, steps):
        self.trainer, self.steps, self.done, self.ended = trainer, steps, 0, False

    def advance(self, steps, stop, limit_s=None):
        seconds = []
        for _ in range(min(steps, self.steps - self.done)):
            if stop() or (limit_s is not None and sum(seconds) > limit_s):
                break
            time.sleep(STEP_S)
            HAPPENINGS[self.trainer.task.name]()
            self.trainer.w += 1
            self.done += 1
            seconds.append(STEP_S)
        return seconds

    def end(self):
        self.ended = True

    def result(self):
        return Result({"w": self.trainer.w.copy()}, 1.0, 0.25)


def _fail(error):
    raise error


def _break(*, leaving_a_thread):
    if leaving_a_thread:
        threading.Thread(target=time.sleep, args=(600.0,)).start()
    raise RuntimeError("CUDA error: device-side assert triggered")


def _take_all_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    try:
        np.ones(1 << 28)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _last_words():
    sys.stderr.write("the disk is full\n")
    sys.stderr.flush()
    os._exit(3)


def _use_up_threads():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    with contextlib.suppress(RuntimeError, MemoryError):
        while True:
            _thread.start_new_thread(time.sleep, (600.0,))  # Thread.start would wait for one without memory to begin


HAPPENINGS = {
    "plain": lambda: None,
    "exit": _last_words,
    "crash": lambda: ctypes.string_at(0),
    "memory": _take_all_memory,
    "no-threads": _use_up_threads,
    "deaf": lambda: ctypes.PyDLL(None).sleep(600),  # with the lock that every thread of the interpreter needs
    "cuda-memory": lambda: _fail(RuntimeError("NvMapMemAllocInternalTagged: 1075072515 error 12")),
    "mistake": lambda: _fail(ValueError("seven is no batch")),
    "quit": lambda: _fail(SystemExit(5)),
    "broken": lambda: _break(leaving_a_thread=False),
    "broken-with-a-thread": lambda: _break(leaving_a_thread=True),
}


def _builtin(name):
    if name not in HAPPENINGS:
        raise NoSuchTask("task", name, "one of " + ", ".join(HAPPENINGS))
    return Task(name, "")


def parts():
    return TrainerBackend(
        prepare=lambda device: TorchFacts("fake", None, None),
        builtin=_builtin,
        from_source=lambda *given: tasks.task_from_source(*given)._replace(name="plain", data=None),
        read=lambda source: Data(3),
        make_trainer=Trainer,
        options=Options,
        choose_device=lambda device: "cpu",
        used_cuda_mb=lambda: 0,
        release=lambda: None,
        is_oom=lambda error: isinstance(error, MemoryError) or "NvMapMem" in str(error),
        make_inference=Inference,
    )


def main(arguments):
    if arguments[0] == "supervise":
        if len(arguments) > 2:
            supervisor.SILENCE_LIMIT_S = float(arguments[2])
            supervisor.LOOK_S = supervisor.CHECK_EVERY_S = supervisor.SILENCE_LIMIT_S / 10
        command = (sys.executable, str(Path(__file__).resolve()))
        return supervisor.main(supervisor.SupervisorSettings(arguments[1], command=command))
    return trainer_process.main(arguments, parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
