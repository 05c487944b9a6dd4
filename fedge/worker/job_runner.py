"""The worker's jobs: the work of each verb, its peak memory, and how its failures are reported and cleaned up."""

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from fedge.worker import builtin_tasks
from fedge.worker.inference_interleaver import TimeBreakdown
from fedge.worker.inference_services import InferenceServices, parse_arrival_times, parse_service, parse_training_share
from fedge.worker.job_slot import Reply, WorkerJob
from fedge.worker.refusal import (
    BadField,
    JobStopped,
    NoTaskLoaded,
    Refusal,
    error_reply,
    get_count,
    get_number,
    get_object,
    get_seconds,
    get_text,
    iter_causes,
)
from fedge.worker.sources import BadSource, compute_stamp, find_strays
from fedge.worker.tasks import cut_task, data_shape
from fedge.worker.trainer_backend import TorchFacts, TrainerBackend

STATUS = "/proc/self/status"
CLEAR = "/proc/self/clear_refs"
FORGET_PEAK = "5"
"""Value for clear_refs that resets the high-water mark (Linux 4.0 and newer)."""


def read_status() -> str:
    """Return this process's status file; empty if there is none."""
    try:
        return Path(STATUS).read_text()
    except OSError:
        return ""


def clear_peak() -> None:
    """Ask the kernel to reset the high-water mark; some kernels do not."""
    with contextlib.suppress(OSError):
        Path(CLEAR).write_text(FORGET_PEAK)


class PeakMemoryMeter:
    """Measures the peak since ``reset``; if the kernel cannot reset its mark, only a peak above all earlier ones.

    Main memory is the kernel's high-water mark of resident pages (VmHWM). CUDA's own context is in neither figure.
    """

    def __init__(self, status: Callable[[], str] = read_status, clear: Callable[[], None] = clear_peak) -> None:
        self._status, self._clear = status, clear
        self._before_kb = 0

    def reset(self) -> None:
        """Start a new measurement from the memory held now."""
        before_kb = parse_high_water_kb(self._status())
        self._clear()
        after_kb = parse_high_water_kb(self._status())
        forgotten = before_kb is None or after_kb is None or after_kb < before_kb
        self._before_kb = 0 if forgotten or after_kb is None else after_kb
        if _uses_gpu():
            _loaded_torch().cuda.reset_peak_memory_stats()

    def peak_mb(self) -> Optional[float]:
        """Return the sum of both peaks in megabytes (1e6 bytes), or None if it is unknown."""
        resident_kb = parse_high_water_kb(self._status())
        if resident_kb is None:
            return None
        if _uses_gpu():  # beside which the main memory of a training hardly changes
            return resident_kb * 1.024e-3 + int(_loaded_torch().cuda.max_memory_reserved()) / 1e6
        return None if resident_kb <= self._before_kb else resident_kb * 1.024e-3


def parse_high_water_kb(status: str) -> Optional[int]:
    """Return ``VmHWM`` of a process's status, in units of 1,024 bytes; None if it is missing."""
    for line in status.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "VmHWM:" and words[1].isdigit():
            return int(words[1])
    return None


def _loaded_torch() -> Any:
    return sys.modules.get("torch")


def _uses_gpu() -> bool:
    torch = _loaded_torch()
    return torch is not None and bool(torch.cuda.is_initialized())


logger = logging.getLogger(__name__)

JOB_VERBS = ("load", "train", "evaluate", "profile", "serve", "unserve")
ASIDE_VERBS = ("serve", "unserve")
"""Verbs that leave the current training as it is, also when they fail."""
WHOLE_OPTIONS = ("steps", "batch_size")
DEVICES = ("auto", "cpu", "cuda")
BROKEN_CONTEXT = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "unspecified launch failure",
    "launch timed out",  # on boards with a display
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "not supported on global/shared address space",
)
"""Messages of the CUDA errors after which, by CUDA's manual, every call to it fails until the process ends."""


class LoadedTask(NamedTuple):
    """A loaded task, kept warm.

    Attributes:
        key: The request and the source's stamp, as JSON; an equal request is answered from here.
        sha256: SHA-256 of the task file; empty for a built-in task.
        reply: The answer of the first ``load``.
    """

    key: str
    name: str
    sha256: str
    device: str
    trainer: Any
    data: Any
    reply: Reply


class JobRunner:
    """Runs the jobs in the thread that calls ``run``; its attributes may be read from other threads.

    Attributes:
        facts: Versions and device of torch, once imported.
        broken: The CUDA error after which only a new process can help; empty while there is none.
        refused: Why the last task could not be loaded; empty once one was.
    """

    def __init__(self, parts: TrainerBackend, data_roots: Sequence[str], device: str) -> None:
        self._parts = parts
        self._roots = [os.path.realpath(root) for root in data_roots]
        self.device = device
        self.facts = TorchFacts(None, None, None)
        self.loaded: Optional[LoadedTask] = None
        self.broken = ""
        self.refused = ""
        self.serving = InferenceServices(self._make_failure_reply, parts.release, time.monotonic)
        self._training: Any = None
        self._peak = PeakMemoryMeter()
        self._size: Any = None  # of the last training's minibatches: samples and width
        self._of = 0

    def prepare(self) -> None:
        """Import torch and initialise the device, so that the first load is fast; a failure shows in that load."""
        try:
            self.facts = self._parts.prepare(self.device)
        except Exception as error:  # noqa: BLE001  the worker stays up and reports it on the next load
            logger.warning("torch cannot be made ready: %s", describe_error(error))

    def used_cuda_mb(self) -> int:
        """Return the memory that torch has reserved on the GPU, in megabytes (1e6 bytes)."""
        return self._parts.used_cuda_mb()

    def run(self, job: WorkerJob) -> Reply:
        """Run a job and return its answer; any exception in it becomes an ``error`` reply."""
        job.before_step = self.serving.serve_before_step
        self.serving.take_statistics()
        begun = self.serving.loop.get_time_breakdown()
        reply, failed = self._attempt(job)
        self.serving.loop.end_step()
        job.arrays = {}
        if job.verb in ASIDE_VERBS:
            if failed:
                self._parts.release()
            return reply
        if job.abandoned or failed:
            self._training = None
        if failed:  # after the except block, whose traceback held on to the tensors
            self._release_after_failure()
        return self._add_service_report(reply, begun)

    def _add_service_report(self, reply: Reply, begun: TimeBreakdown) -> Reply:
        """Add the statistics of the services during the job, if there are any."""
        header, arrays = reply
        done = self.serving.take_statistics()
        if done is None or not header["ok"]:
            return reply
        now = self.serving.loop.get_time_breakdown()
        spent = {name: end - begin for name, begin, end in zip(begun._fields, begun, now)}
        return dict(header, service=done, spent=spent), arrays

    def _attempt(self, job: WorkerJob) -> Tuple[Reply, bool]:
        try:
            return getattr(self, f"_{job.verb}")(job), False
        except BadField as error:
            return error_reply(error.kind, f"{job.verb}: {error}"), False
        except (KeyboardInterrupt, SystemExit, Exception) as error:  # noqa: BLE001  a task may raise anything
            reply = self._make_failure_reply(job.verb, error)
            if job.verb == "load" and isinstance(error, Refusal) and not self._parts.is_oom(error):
                self.refused = reply[0]["error"]["text"]
            # A load that was refused before it freed memory changed nothing: the loaded task stays.
            return reply, job.verb != "load" or self.loaded is None

    def _make_failure_reply(self, verb: str, error: BaseException) -> Reply:
        if isinstance(error, JobStopped):
            return error_reply("failed", f"{verb} was cancelled: {error}")
        if self._parts.is_oom(error):
            text = f"{verb} ran out of memory: {describe_error(error)}; a smaller batch or model needs less"
            return error_reply("oom", text)
        said = " ".join(f"{type(one).__name__} {one}" for one in iter_causes(error)).lower()
        if any(phrase in said for phrase in BROKEN_CONTEXT):
            self.broken = describe_error(error)
        if not isinstance(error, Refusal):
            return error_reply("failed", describe_error(error))
        # An error in a task file that appears only during a job is no longer reported as a bad source.
        late = error.kind == "bad-source" and verb not in ("load", "serve")
        return error_reply("failed" if late else error.kind, str(error))

    def _release_after_failure(self) -> None:
        """Free the memory that a failed job held."""
        try:
            if self.loaded is None:
                self._parts.release()
            else:
                self.loaded.trainer.recover()
        except Exception as error:  # noqa: BLE001  what is broken now shows itself in the next job
            logger.warning("cannot tidy up after a failed job: %s", describe_error(error))

    def _load(self, job: WorkerJob) -> Reply:
        task, source = get_object(job.header, "task"), get_object(job.header, "data")
        device = _get_device(job.header)
        # Compare with the present files: a board's own samples grow, and a file without a hash may be replaced.
        key = json.dumps([task, source, device, self._source_stamp(source)], sort_keys=True)
        self.refused = ""
        if self.loaded is not None and self.loaded.key == key:
            header, arrays = self.loaded.reply
            return dict(header, warm=True), arrays
        self._check_source(source)
        made = self._make_task(task)
        _check_not_cancelled(job, "nothing was changed")
        self.loaded, self._training = None, None  # first room for the new one
        self._parts.release()
        chosen = self._parts.choose_device(self.device if device == "auto" else device)
        data = (made.data or self._parts.read)(source)
        _check_not_cancelled(job, "nothing is loaded now")
        trainer = self._parts.make_trainer(made, data, chosen)
        header = {"ok": True, "warm": False, "samples": trainer.n_train, "test": trainer.n_test}
        header.update(classes=int(data.classes), buffers=sorted(trainer.buffers), device=chosen)
        reply = header, {"labels": trainer.labels}
        self.loaded = LoadedTask(key, made.name, made.sha256, chosen, trainer=trainer, data=data, reply=reply)
        return reply

    def _make_task(self, task: Mapping[str, Any]) -> Any:
        if "builtin" in task:
            made = self._parts.builtin(get_text(task, "builtin"))
        else:
            made = self._parts.from_source(get_text(task, "name"), get_text(task, "source"), get_text(task, "sha256"))
        return cut_task(made, task["channels"]) if "channels" in task else made

    def _check_source(self, source: Mapping[str, Any]) -> None:
        """Raise ``BadSource`` for a path, or a link below it, that leads out of the data roots."""
        allowed = ", ".join(self._roots) or "no folder (the worker has no --data-root)"
        for field in ("file", "folder"):
            path = get_text(source, field) if field in source else None
            for stray in [] if path is None else find_strays(path, self._roots):
                raise BadSource(field, stray, f"something below {allowed}")

    def _source_stamp(self, source: Mapping[str, Any]) -> Optional[str]:
        """Return a stamp that changes with the source's files; None if its fields identify it."""
        if "folder" in source:
            return compute_stamp(get_text(source, "folder"), self._roots)
        if "file" in source and source.get("sha256") is None:
            return compute_stamp(get_text(source, "file"), self._roots)
        return None

    def _train(self, job: WorkerJob) -> Reply:
        trainer = self._require_trainer()
        steps, limit_s = get_count(job.header, "steps", 0), get_seconds(job.header, "limit_s")
        if job.header.get("begin") is not None:
            self._begin_training(trainer, job)
        elif self._training is None:
            raise BadField("begin", "none, and no training is under way", "send `begin` with the model's arrays")
        training = self._training
        job.of = min(self._of, training.done + steps)
        taken_s = [] if steps == 0 else training.advance(steps, _count_steps(job, lambda: training.done), limit_s)
        self.serving.loop.end_step()  # what follows is no minibatch
        job.done = training.done
        header = {"ok": True, "done": training.done, "of": self._of, "seconds": [float(one) for one in taken_s]}
        header.update(stopped=_stop_reason(job), loss=None, accuracy=None)
        header.update(first_step_after_s=job.first_step_s, peak_mb=self._peak.peak_mb())
        if not job.header.get("finish", False):
            return header, {}
        result, self._training = training.result(), None
        training.end()  # its memory now, and not when the next one waits for its first minibatch
        header.update(loss=float(result.loss), accuracy=float(result.accuracy))
        return header, dict(result.arrays)

    def _begin_training(self, trainer: Any, job: WorkerJob) -> None:
        begin = get_object(job.header, "begin")
        seed, fields = get_count(begin, "seed", 0), get_object(begin, "options")
        for name in fields:
            _ = get_count(fields, name, 1) if name in WHOLE_OPTIONS else get_number(fields, name)
        try:
            options = self._parts.options(**fields)
        except TypeError as error:
            raise BadField("begin.options", str(error), "the options of the trainer") from error
        self._training = None
        size = fields.get("batch_size"), fields.get("width", 1.0)
        if self._size not in (None, size):
            trainer.recover()  # what torch keeps of larger minibatches would count as the peak of smaller ones
        self._size = size
        share = job.arrays.pop("share", None)
        if share is not None:
            share = share.copy()  # lives as long as the training, the request's memory is used again
        arrays = job.arrays or trainer.initial_arrays(seed)
        self._training, self._of = trainer.start(arrays, share, seed, options), int(options.steps)
        self._peak.reset()  # also what it took to make a narrow network

    def _evaluate(self, job: WorkerJob) -> Reply:
        trainer = self._require_trainer()
        if not job.arrays:
            raise BadField("arrays", "none", "the model's")
        self._training = None  # the trainer has one network
        loss, accuracy = trainer.evaluate(job.arrays, job.should_stop)
        return {"ok": True, "loss": float(loss), "accuracy": float(accuracy), "samples": trainer.n_test}, {}

    def _profile(self, job: WorkerJob) -> Reply:
        trainer, kind = self._require_trainer(), job.header.get("kind", "train")
        steps, batch_size = get_count(job.header, "steps", 1), get_count(job.header, "batch_size", 1)
        if kind not in ("train", "infer"):
            raise BadField("kind", repr(kind), "train or infer")
        job.of = steps
        timed = trainer.profile(steps, batch_size, kind, _count_steps(job))
        fetch_s, step_s = [float(one.fetch_s) for one in timed], [float(one.step_s) for one in timed]
        return {"ok": True, "fetch_s": fetch_s, "step_s": step_s}, {}

    def _serve(self, job: WorkerJob) -> Reply:
        service, share = parse_service(job.header), parse_training_share(job.header)
        _ = parse_arrival_times(job.header, 0.0)  # refused before anything is made
        self.serving.check_room(service.name)
        task, seed = get_object(job.header, "task"), get_count(job.header, "seed", 0)
        device = _get_device(job.header)
        if device == "auto" and self.loaded is not None:
            chosen = self.loaded.device
        else:
            chosen = self._parts.choose_device(self.device if device == "auto" else device)
        made = self._make_task(task)
        data = self._choose_service_data(made, job.header)
        _check_not_cancelled(job, "nothing was changed")
        options = {"arrays": job.arrays or None, "seed": seed, "most": service.batch_size}
        net = self._parts.make_inference(made, data, chosen, **options)
        reply = self.serving.install(service, lambda: parse_arrival_times(job.header, time.monotonic()), net, job)
        if share is not None:
            self.serving.loop.training_share = share
        return reply

    def _choose_service_data(self, task: Any, fields: Mapping[str, Any]) -> Any:
        """Return the data that defines a service's images.

        The request's own source comes first, then the loaded data, then noise for a built-in task.
        """
        if fields.get("data") is not None:
            source = get_object(fields, "data")
            self._check_source(source)
            return (task.data or self._parts.read)(source)
        fits = "builtin" not in fields["task"] or (
            self.loaded is not None and data_shape(self.loaded.data) == builtin_tasks.builtin_shape(task.name)
        )
        if self.loaded is not None and fits:
            return self.loaded.data
        if "builtin" in fields["task"]:
            return self._parts.read(builtin_tasks.synthetic_source(task.name))
        raise BadField("data", "none, and nothing is loaded", "a source whose images the task's network takes")

    def _unserve(self, job: WorkerJob) -> Reply:
        name = None if job.header.get("name") is None else get_text(job.header, "name")
        return {"ok": True, "services": self.serving.remove(name)}, {}

    def _require_trainer(self) -> Any:
        if self.loaded is None:
            raise NoTaskLoaded("task", "none loaded", "send `load` first")
        return self.loaded.trainer


def _get_device(fields: Mapping[str, Any]) -> str:
    device: str = fields.get("device", "auto")
    if device not in DEVICES:
        raise BadField("device", repr(device), f"one of {', '.join(DEVICES)}")
    return device


def _check_not_cancelled(job: WorkerJob, otherwise: str) -> None:
    """Raise ``JobStopped`` if the job is cancelled; called between the parts of a load, which are uninterruptible."""
    if job.cancelled.is_set():
        raise JobStopped(otherwise)


def describe_error(error: BaseException) -> str:
    """Return an exception's type, text and the line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(one.filename).name}:{one.lineno} in {one.name})" for one in place)
    return f"{type(error).__name__}: {str(error)[:2000]}{where}"


def _stop_reason(job: WorkerJob) -> Optional[str]:
    if job.of is None or job.done >= job.of:
        return None
    return "cancelled" if job.cancelled.is_set() else "limit"


def _count_steps(job: WorkerJob, done: Optional[Callable[[], int]] = None) -> Callable[[], bool]:
    """Wrap ``should_stop`` so that it also updates the step count: from ``done``, else from its own calls."""
    calls = [0]

    def watch() -> bool:
        job.done = calls[0] if done is None else done()
        calls[0] += 1
        return job.should_stop()

    return watch
