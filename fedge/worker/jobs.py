"""The worker's jobs: one at a time, told to stop at the next minibatch, and what each verb does with the trainer."""

import gc
import hashlib
import importlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from fedge.worker.frames import Arrays, Head

logger = logging.getLogger(__name__)

JOB_VERBS = ("load", "train", "evaluate", "profile", "infer")
DEVICES = ("auto", "cpu", "cuda")

SHORT_ON_JETSON = ("nvmapmem", "nvml_success ==")
"""How CUDA on a Jetson may say that memory is short, beside the ways that the trainer knows."""
BROKEN_CONTEXT = ("device-side assert", "illegal memory access", "unspecified launch failure", "misaligned address")
"""After these every call to CUDA fails until the process ends."""

Reply = Tuple[Dict[str, Any], Arrays]


class Refused(Exception):
    """A request that is not carried out: the kind on the wire, and a text that says what to do."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Facts(NamedTuple):
    """What is known once torch is loaded."""

    torch: Optional[str]
    cuda_name: Optional[str]
    cuda_total_mb: Optional[int]


class Parts(NamedTuple):
    """The trainer's parts, so that a test can put its own in: see ``real_parts``."""

    prepare: Callable[[str], Facts]
    builtin: Callable[[str], Any]
    from_source: Callable[[str, str, str], Any]
    read: Callable[[Dict[str, Any]], Any]
    make_trainer: Callable[[Any, Any, str], Any]
    options: Callable[..., Any]
    choose_device: Callable[[str], str]
    used_cuda_mb: Callable[[], int]
    release: Callable[[], None]
    is_oom: Callable[[BaseException], bool]
    stopped: Callable[[BaseException], bool]
    """Whether an exception only says that a test was stopped."""
    refusal: Type[Exception]
    """What the parts raise for a user's mistake; its ``kind`` is one of the wire's."""


class Job:
    """One request on its way: who runs it calls ``watch`` before each minibatch, who serves it waits for ``ended``."""

    def __init__(self, verb: str, head: Head, clock: Callable[[], float] = time.monotonic) -> None:
        self.verb = verb
        self.head = head
        self.header = head.header
        self.arrays: Arrays = {}
        self.reply: Optional[Reply] = None
        self.done = 0
        self.of: Optional[int] = None
        self.first_step_s: Optional[float] = None
        self.cancelled = threading.Event()
        self.abandoned = False
        self._clock = clock
        self._arrived_s = clock()
        self.ended, self._end = os.pipe()

    def watch(self) -> bool:
        """Whether to stop now; called before each minibatch, and so also the place where the first one is timed."""
        if self.first_step_s is None:
            self.first_step_s = self._clock() - self._arrived_s
        return self.cancelled.is_set()

    def abandon(self) -> None:
        """The client is gone: nobody will read the answer."""
        self.abandoned = True
        self.cancelled.set()

    def finish(self, reply: Reply) -> None:
        """The answer is ready: wakes who serves the request."""
        self.reply = reply
        os.write(self._end, b".")

    def answer(self) -> Reply:
        """What ``finish`` was given."""
        assert self.reply is not None
        return self.reply

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self.ended)
        os.close(self._end)

    def progress(self) -> Dict[str, Any]:
        """How far it is, for ``status``."""
        return {"verb": self.verb, "done": self.done, "of": self.of}

    def __str__(self) -> str:
        return self.verb if self.of is None else f"{self.verb} ({self.done} of {self.of} steps done)"


class Slot:
    """Room for one job, claimed before its arrays are read, so that never two bodies are in memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: Optional[Job] = None
        self.job: Optional[Job] = None

    def claim(self, job: Job) -> Optional[Job]:
        """Take the room; the job that has it already, or None when it is now this one's."""
        with self._changed:
            if self.job is None:
                self.job = job
                return None
            return self.job

    def submit(self, job: Job) -> None:
        """The job that claimed the room is complete and may run."""
        with self._changed:
            self._ready = job
            self._changed.notify()

    def wait(self, limit_s: Optional[float] = None) -> Optional[Job]:
        """The next job to run; None when none came within the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None, limit_s)
            job, self._ready = self._ready, None
            return job

    def free(self, job: Job) -> None:
        """The job needs the room no longer."""
        with self._changed:
            if self.job is job:
                self.job = None

    def cancel(self) -> bool:
        """Ask the running job to stop; whether there was one."""
        job = self.job
        if job is not None:
            job.cancelled.set()
        return job is not None


class Loaded(NamedTuple):
    """What ``load`` made and keeps warm."""

    key: str
    name: str
    sha256: str
    device: str
    trainer: Any
    reply: Reply


class Runner:
    """Carries out the jobs, in the thread that calls ``run``; its attributes may be read from others."""

    def __init__(self, parts: Parts, data_roots: Sequence[str], device: str) -> None:
        self._parts = parts
        self._roots = [os.path.realpath(root) for root in data_roots]
        self.device = device
        self.facts = Facts(None, None, None)
        self.loaded: Optional[Loaded] = None
        self.broken = ""
        """Not empty once only a new process can help."""
        self._training: Any = None
        self._of = 0

    def prepare(self) -> None:
        """Import torch and wake the device, so that the first load is quick. Trouble is told by the load itself."""
        try:
            self.facts = self._parts.prepare(self.device)
        except Exception as error:  # noqa: BLE001  the worker stays and says it to whoever asks for work
            logger.warning("torch cannot be made ready: %s", describe(error))

    def used_cuda_mb(self) -> int:
        """Memory that torch holds on the GPU."""
        return self._parts.used_cuda_mb()

    def run(self, job: Job) -> Reply:
        """Carry out a job whatever happens in it: the answer, or an ``error`` of a kind on the wire."""
        reply, failed = self._attempt(job)
        job.arrays = {}
        if job.abandoned or failed:
            self._training = None
        if failed:  # after the except block, whose traceback held on to the tensors
            self._tidy()
        return reply

    def _attempt(self, job: Job) -> Tuple[Reply, bool]:
        try:
            return getattr(self, f"_{job.verb}")(job), False
        except Refused as error:
            return refusal(error.kind, error.text), False
        except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001  a task may raise anything
            # A load that was refused before it made room has touched nothing: what is loaded goes on.
            return self._failure(job, error), job.verb != "load" or self.loaded is None

    def _failure(self, job: Job, error: BaseException) -> Reply:
        if self._parts.stopped(error):
            return refusal("failed", f"{job.verb} was cancelled: {error}")
        chain = list(_chain(error))
        if self._parts.is_oom(error) or any(_mentions(one, SHORT_ON_JETSON) for one in chain):
            return refusal(
                "oom", f"{job.verb} ran out of memory: {describe(error)}; a smaller batch or model needs less"
            )
        if any(_mentions(one, BROKEN_CONTEXT) for one in chain):
            self.broken = describe(error)
        if isinstance(error, self._parts.refusal):
            kind = str(getattr(error, "kind", "failed"))
            return refusal("failed" if kind == "bad-source" and job.verb != "load" else kind, str(error))
        return refusal("failed", describe(error))

    def _tidy(self) -> None:
        """Give back what a failed job held."""
        gc.collect()
        try:
            if self.loaded is not None:
                self.loaded.trainer.recover()
            self._parts.release()
        except Exception as error:  # noqa: BLE001  what is broken now shows itself in the next job
            logger.warning("cannot tidy up after a failed job: %s", describe(error))

    # ---- the verbs

    def _load(self, job: Job) -> Reply:
        task, source = _dict(job.header, "task"), _dict(job.header, "data")
        device = job.header.get("device", "auto")
        if device not in DEVICES:
            raise Refused("bad-request", f"device: got {device!r}; one of {', '.join(DEVICES)}")
        key = json.dumps([task, source, device], sort_keys=True)
        if self.loaded is not None and self.loaded.key == key:
            header, arrays = self.loaded.reply
            return dict(header, warm=True), arrays
        self._check_source(source)
        made = self._task(task)
        self.loaded, self._training = None, None  # first room for the new one
        self._parts.release()
        chosen = self._parts.choose_device(self.device if device == "auto" else device)
        data = (made.data or self._parts.read)(source)
        trainer = self._parts.make_trainer(made, data, chosen)
        header = {"ok": True, "warm": False, "samples": trainer.n_train, "test": trainer.n_test}
        header.update(classes=int(data.classes), buffers=sorted(trainer.buffers), device=chosen)
        reply = header, {"labels": trainer.labels}
        self.loaded = Loaded(key, made.name, made.sha256, chosen, trainer, reply)
        return reply

    def _task(self, task: Mapping[str, Any]) -> Any:
        if "builtin" in task:
            return self._parts.builtin(_text(task, "builtin"))
        name, source, promised = _text(task, "name"), _text(task, "source"), _text(task, "sha256")
        found = hashlib.sha256(source.encode("utf-8")).hexdigest()
        if found != promised:
            raise Refused("hash", f"task {name}: its source hashes to {found}; {promised} was promised; send it again")
        return self._parts.from_source(name, source, promised)

    def _check_source(self, source: Mapping[str, Any]) -> None:
        for field in ("file", "folder"):
            if field in source and not self._below_a_root(_text(source, field)):
                allowed = ", ".join(self._roots) or "no folder (the worker has no --data-root)"
                raise Refused("bad-source", f"{field}: got {source[field]}; something below {allowed}")

    def _below_a_root(self, path: str) -> bool:
        real = os.path.realpath(str(Path(path).expanduser()))
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self._roots)

    def _train(self, job: Job) -> Reply:
        trainer = self._trainer()
        steps, limit_s = _count(job.header, "steps", 0), _seconds(job.header, "limit_s")
        if job.header.get("begin") is not None:
            self._begin(trainer, job)
        elif self._training is None:
            raise Refused("bad-request", "train: no training is under way; send `begin` with the model's arrays")
        training = self._training
        before, job.of = training.done, min(self._of, training.done + steps)
        seconds = [] if steps == 0 else training.advance(steps, _counting(job, lambda: training.done), limit_s)
        job.done = training.done
        header = {"ok": True, "done": training.done, "of": self._of, "seconds": [float(one) for one in seconds]}
        header.update(stopped=_stopped(job, training.done - before), loss=None, accuracy=None)
        header["first_step_after_s"] = job.first_step_s
        if not job.header.get("finish", False):
            return header, {}
        result, self._training = training.result(), None
        header.update(loss=float(result.loss), accuracy=float(result.accuracy))
        return header, dict(result.arrays)

    def _begin(self, trainer: Any, job: Job) -> None:
        begin = _dict(job.header, "begin")
        self._training = None
        share = job.arrays.pop("share", None)
        if share is not None:
            share = share.copy()  # lives as long as the training, the request's memory is used again
        seed = _count(begin, "seed", 0)
        try:
            options = self._parts.options(**_dict(begin, "options"))
        except TypeError as error:
            raise Refused("bad-request", f"begin.options: {error}") from error
        arrays = job.arrays or trainer.initial_arrays(seed)
        self._training, self._of = trainer.start(arrays, share, seed, options), int(options.steps)

    def _evaluate(self, job: Job) -> Reply:
        trainer = self._trainer()
        if not job.arrays:
            raise Refused("bad-request", "evaluate: got no arrays; the model's")
        self._training = None  # the trainer has one network
        loss, accuracy = trainer.evaluate(job.arrays, job.watch)
        return {"ok": True, "loss": float(loss), "accuracy": float(accuracy), "samples": trainer.n_test}, {}

    def _profile(self, job: Job) -> Reply:
        kind = job.header.get("kind", "train")
        timed = self._timed(job, _count(job.header, "steps", 1), kind)
        return {
            "ok": True,
            "fetch_s": [float(one.fetch_s) for one in timed],
            "step_s": [float(one.step_s) for one in timed],
        }, {}

    def _infer(self, job: Job) -> Reply:
        timed = self._timed(job, _count(job.header, "batches", 1), "infer")
        return {"ok": True, "seconds": [float(one.step_s) for one in timed]}, {}

    def _timed(self, job: Job, steps: int, kind: Any) -> List[Any]:
        if kind not in ("train", "infer"):
            raise Refused("bad-request", f"kind: got {kind!r}; train or infer")
        trainer, batch_size = self._trainer(), _count(job.header, "batch_size", 1)
        job.of = steps
        return list(trainer.profile(steps, batch_size, kind, _counting(job)))

    def _trainer(self) -> Any:
        if self.loaded is None:
            raise Refused("no-task", "the worker has no task; send `load` first")
        return self.loaded.trainer


def real_parts() -> Parts:
    """The trainer itself; loads torch only when ``prepare`` or a load runs."""
    from fedge.worker import sources
    from fedge.worker.refusal import Refusal

    return Parts(
        prepare=_prepare_torch,
        builtin=lambda name: _module("tasks").builtin(name),
        from_source=lambda name, text, sha256: _module("tasks").from_source(name, text, sha256),
        read=sources.read,
        make_trainer=lambda task, data, device: _module("trainer").Trainer(task, data, device),
        options=lambda **fields: _module("trainer").Options(**fields),
        choose_device=lambda device: str(_module("trainer").usable(device)),
        used_cuda_mb=_used_cuda_mb,
        release=_release,
        is_oom=_is_oom,
        stopped=lambda error: type(error).__name__ == "Stopped",
        refusal=Refusal,
    )


def _module(name: str) -> Any:
    return importlib.import_module(f"fedge.worker.{name}")


def _prepare_torch(device: str) -> Facts:
    chosen = _module("trainer").usable(device)
    torch: Any = importlib.import_module("torch")
    if chosen == "cpu":
        return Facts(str(torch.__version__), None, None)
    torch.zeros(1, device=chosen)  # makes the CUDA context, which takes seconds on a board
    properties = torch.cuda.get_device_properties(0)
    return Facts(str(torch.__version__), str(properties.name), int(properties.total_memory // 1000000))


def _is_oom(error: BaseException) -> bool:
    # Without torch the trainer cannot be asked; then Python's own sign is the only one.
    known: Any = sys.modules.get("fedge.worker.trainer")
    return isinstance(error, MemoryError) if known is None else bool(known.is_oom(error))


def _used_cuda_mb() -> int:
    torch: Any = sys.modules.get("torch")
    return 0 if torch is None else int(torch.cuda.memory_reserved() // 1000000)


def _release() -> None:
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def refusal(kind: str, text: str) -> Reply:
    """The answer to a request that was not carried out."""
    return {"ok": False, "error": {"kind": kind, "text": text[:4000]}}, {}


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """An exception and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__


def _mentions(error: BaseException, phrases: Sequence[str]) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return any(phrase in text for phrase in phrases)


def describe(error: BaseException) -> str:
    """Type, text and the line where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(one.filename).name}:{one.lineno} in {one.name})" for one in place)
    return f"{type(error).__name__}: {str(error)[:2000]}{where}"


def _stopped(job: Job, done: int) -> Optional[str]:
    if job.of is None or job.done >= job.of:
        return None
    return "cancelled" if job.cancelled.is_set() else "limit"


def _counting(job: Job, done: Optional[Callable[[], int]] = None) -> Callable[[], bool]:
    """``watch``, which also keeps the count of minibatches: from ``done``, else from its own calls."""
    calls = [0]

    def watch() -> bool:
        job.done = calls[0] if done is None else done()
        calls[0] += 1
        return job.watch()

    return watch


# ---- the fields of a request


def _dict(fields: Mapping[str, Any], name: str) -> Dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise Refused("bad-request", f"{name}: got {str(value)[:80]!r}; an object")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Refused("bad-request", f"{name}: got {str(value)[:80]!r}; text")
    return value


def _count(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = fields.get(name, least)
    if type(value) is not int or not least <= value < 2**63:
        raise Refused("bad-request", f"{name}: got {str(value)[:80]!r}; a whole number from {least}")
    return value


def _seconds(fields: Mapping[str, Any], name: str) -> Optional[float]:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Refused("bad-request", f"{name}: got {str(value)[:80]!r}; seconds above 0, or null for no limit")
    return float(value)
