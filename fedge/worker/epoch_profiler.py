"""Run some epochs of training or inference and record how the time of every step is spent; a program of its own.

``python -m fedge.worker.epoch_profiler SPEC.json OUT.npz``, or this file's path in place of ``-m`` and the name. It
needs torch, Pillow and numpy, and of fedge only the neighbouring modules. It prints one JSON object per line to stdout:
progress, and on failure the reason (exit code 1).
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

if not __package__:
    # Started as a file, perhaps by another Python than the one whose packages lie beside fedge: make only fedge itself
    # importable, neither the folder that holds it nor this file's folder, which is first on the path.
    del sys.path[0]
    sys.modules["fedge"] = types.ModuleType("fedge")
    sys.modules["fedge"].__path__ = [str(Path(__file__).resolve().parents[1])]

import numpy as np

from fedge.worker import generated_images
from fedge.worker.refusal import Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedge.worker.step_timers import StepOutcome, TimedBatch

    Column = NDArray[np.float64]
else:
    TimedBatch = StepOutcome = Column = Any

now_s = time.monotonic
PROGRESS_PERIOD_S = 2.0
"""Seconds between progress lines: well below the time without output after which the caller assumes a crash."""
STEP_COLUMNS = (
    "start_s",
    "fetch_s",
    "preprocess_s",
    "collate_s",
    "stall_s",
    "copy_s",
    "compute_s",
    "overhead_s",
    "taking_s",
    "step_s",
)
"""Columns recorded for every step.

``taking_s`` is the part of ``overhead_s`` before the batch arrived: without loader workers collating and the loader's
own work, with them the hand-over of the batch.
"""
EPOCH_COLUMNS = (
    "begun_s",
    "started_s",
    "ended_s",
    "resident_before",
    "resident_after",
    "read_bytes_before",
    "read_bytes_after",
)
PIL_LIMIT = None
"""No limit on the size of the user's own images."""


class BadSpec(Refusal):
    """An invalid specification file."""


class EpochSpec(NamedTuple):
    """Specification of a profiling run.

    Attributes:
        model: Name of the network, as ``builtin_tasks.make_network`` takes it.
        shape: Channels, height and width of the network's input.
        data: {"folder": path} or {"array": path of an .npy file}.
    """

    model: str
    shape: List[int]
    classes: int
    data: Dict[str, str]
    images: int
    """Images per epoch."""
    kind: str = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = 2
    pinned: bool = False
    learning_rate: float = 0.01
    momentum: float = 0.9
    epochs: int = 1
    minibatches: Optional[int] = None
    device: str = "auto"
    threads: Optional[int] = None
    """Number of torch threads in the training process; None: 1 on a CPU device, torch's default beside a GPU."""
    seed: int = 0
    disk: Optional[str] = None
    """Device number of the block device under the data, such as "8:0"."""
    modules: Sequence[str] = ()
    """Folders from which the user's own network may be imported."""
    leash: bool = False
    """Whether to exit, with all loader workers, when the parent closes stdin or dies."""


class StepTimeTable:
    """Preallocated table of the times of every step, in seconds."""

    def __init__(self, rows: int) -> None:
        self.epoch, self.step = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.times: Dict[str, Column] = {name: np.zeros(rows) for name in STEP_COLUMNS}
        self.rows = 0

    def add_row(self, epoch: int, step: int, times: Tuple[float, ...]) -> None:
        """Append one step; ``times`` are all of ``STEP_COLUMNS`` but the last, which ``close_row`` sets."""
        row = self.rows
        self.epoch[row], self.step[row] = epoch, step
        for name, seconds in zip(STEP_COLUMNS, times):
            self.times[name][row] = seconds
        self.rows = row + 1

    def close_row(self, end_s: float) -> None:
        """Set ``step_s`` of the last row; its step ends at ``end_s``, with the next one's start or the epoch's end."""
        if self.rows:
            row = self.rows - 1
            self.times["step_s"][row] = end_s - self.times["start_s"][row]

    def to_arrays(self) -> Dict[str, Any]:
        """Return all columns by name, each with one value per recorded step."""
        kept = slice(0, self.rows)
        found: Dict[str, Any] = {"epoch": self.epoch[kept], "step": self.step[kept]}
        found.update((name, column[kept]) for name, column in self.times.items())
        return found


def main(argv: Optional[List[str]] = None) -> int:
    """Run the profiler and return the exit code: 0, or 1 with the reason in the last line on stdout."""
    given = sys.argv[1:] if argv is None else argv
    if len(given) != 2:
        return print_failure("usage: epoch_profiler.py SPEC.json OUT.npz")
    try:
        spec = read_spec(Path(given[0]))
        if spec.leash:
            threading.Thread(target=exit_with_parent, daemon=True).start()
        arrays = measure_epochs(spec)
        write_arrays(Path(given[1]), arrays)
    except Refusal as refused:
        return print_failure(str(refused))
    except Exception as error:  # noqa: BLE001 -- the process edge: the caller gets one line
        return print_failure(describe_failure(error))
    print_json({"done": len(arrays["step"])})
    return 0


def exit_with_parent() -> None:
    """Wait for the end of stdin, then kill this process group.

    Read from the file descriptor: a loader worker would inherit the lock of Python's own stdin object.
    """
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def print_json(what: Dict[str, Any]) -> None:
    """Print one object as a line of JSON on stdout, and flush it."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def print_failure(why: str) -> int:
    """Print the reason for the failure and return the exit code 1."""
    print_json({"failed": " ".join(why.split())[:1000]})
    return 1


def describe_failure(error: BaseException) -> str:
    """Describe an exception in one line, naming a lack of memory as such."""
    trainer: Any = sys.modules.get("fedge.worker.trainer")
    if isinstance(error, MemoryError) or (trainer is not None and trainer.is_oom(error)):
        return f"out of memory: {str(error) or 'the machine has no more'}; a smaller minibatch or network needs less"
    last = [line for line in str(error).splitlines() if line.strip()]  # a loader's worker sends its whole traceback
    return f"{type(error).__name__}: {last[-1] if last else 'no text'}"


def read_spec(path: Path) -> EpochSpec:
    """Read a specification file.

    Raises:
        BadSpec: The file is unreadable, has unknown or missing fields, or a value out of range.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSpec(str(path), f"no readable specification ({error})", "a JSON object") from error
    unknown = sorted(set(fields) - set(EpochSpec._fields)) if isinstance(fields, dict) else ["no object"]
    if unknown:
        raise BadSpec(str(path), ", ".join(unknown), "the fields " + ", ".join(EpochSpec._fields))
    try:
        spec = EpochSpec(**fields)
    except TypeError as error:
        raise BadSpec(str(path), str(error), "all fields without a default") from error
    if spec.kind not in ("train", "infer"):
        raise BadSpec("kind", repr(spec.kind), "train or infer")
    if min(spec.batch_size, spec.epochs, spec.prefetch, spec.workers + 1, spec.images) < 1:
        raise BadSpec(str(path), "a count below 1", "a minibatch, an epoch and a prefetch of at least one")
    return spec


def measure_epochs(spec: EpochSpec) -> Dict[str, Any]:
    """Run all epochs and return the recorded arrays by name.

    Returns:
        The columns of ``StepTimeTable.to_arrays``, one value per step, and ``EPOCH_COLUMNS``, one value per epoch.

    Raises:
        Refusal: The specification does not fit the machine, the network or the images.
        RuntimeError: An error of torch, such as a lack of memory.
    """
    import torch

    from fedge.worker import step_timers as steps
    from fedge.worker.builtin_tasks import make_network
    from fedge.worker.trainer import resolve_device

    sys.path.extend(spec.modules)
    device = torch.device(resolve_device(spec.device))
    if spec.pinned and device.type != "cuda":
        raise BadSpec("pinned", "true on a machine without a CUDA device", "false: nothing is copied to a device")
    _fix_threads(spec, device.type)
    samples, paths = load_samples(spec)
    torch.manual_seed(spec.seed)
    net = make_network(spec.model, tuple(spec.shape), spec.classes).to(device)  # type: ignore[arg-type]
    work = steps.make_step_function(net, spec.kind, spec.learning_rate, spec.momentum)
    step = steps.time_on_host(work) if device.type == "cpu" else steps.time_on_cuda(work, device)
    print_json(dict(describe_environment(device), images=len(samples)))
    return run_epochs(spec, samples, paths, step)


def _fix_threads(spec: EpochSpec, device: str) -> None:
    # One thread on the processor: points then differ in the knob, not in thread scheduling; the loader has free cores.
    import torch

    threads = 1 if spec.threads is None and device == "cpu" else spec.threads
    if threads is not None:
        torch.set_num_threads(threads)


def describe_environment(device: Any) -> Dict[str, Any]:
    """Return the torch and Python versions, the device name and the thread count, on which the figures depend."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    python = ".".join(str(n) for n in sys.version_info[:3])
    return {"torch": str(torch.__version__), "python": python, "device": name, "threads": torch.get_num_threads()}


def load_samples(spec: EpochSpec) -> Tuple[Any, List[str]]:
    """Load the data set.

    Returns:
        The data set, and the paths of the files that an epoch reads (none for an array in memory).

    Raises:
        BadImages: The folder has too few images, or more classes than the network scores.
    """
    from PIL import Image

    from fedge.worker import step_timers as steps

    Image.MAX_IMAGE_PIXELS = PIL_LIMIT
    prepared = steps.ImageTransform(tuple(spec.shape))  # type: ignore[arg-type]
    if "array" in spec.data:
        pixels = np.load(spec.data["array"], allow_pickle=False)
        return steps.ImageArray(pixels[: spec.images], spec.classes, prepared), []
    folder = spec.data["folder"]
    files = generated_images.choose_image_files(generated_images.list_image_files(folder), spec.images, folder)
    own = not generated_images.is_complete(Path(folder))
    highest = max(label for _, label in files)
    if own and highest >= spec.classes:
        raise generated_images.BadImages(
            folder, f"{highest + 1} classes", f"the {spec.classes} that the network scores, or fewer"
        )
    labelled = [(path, label % spec.classes) for path, label in files]
    return steps.ImageFiles(labelled, prepared), [path for path, _ in labelled]


def run_epochs(spec: EpochSpec, samples: Any, paths: List[str], step: Callable[..., StepOutcome]) -> Dict[str, Any]:
    """Run all epochs in sequence; host counters are read between them only.

    Returns:
        Arrays by name, as in ``measure_epochs``.
    """
    from fedge.worker import page_cache as host
    from fedge.worker import step_timers as steps

    how = steps.TimedLoaderSettings(spec.batch_size, spec.workers, spec.prefetch, spec.pinned)
    order = steps.plan_batches(len(samples), batch_size=spec.batch_size, most=spec.minibatches, seed=spec.seed, epoch=0)
    if not order:
        raise BadSpec("batch_size", str(spec.batch_size), f"at most the {len(samples)} images of an epoch")
    notes = StepTimeTable(spec.epochs * len(order))
    edges: Dict[str, Column] = {name: np.zeros(spec.epochs) for name in EPOCH_COLUMNS}
    for epoch in range(spec.epochs):
        order = steps.plan_batches(
            len(samples), batch_size=spec.batch_size, most=spec.minibatches, seed=spec.seed, epoch=epoch
        )
        before = host.read_host_counters(paths, spec.disk)
        loader = steps.make_loader(samples, how, order)
        begun_s, started_s, ended_s, rest = run_epoch(loader, step=step, notes=notes, epoch=epoch, workers=spec.workers)
        after = host.read_host_counters(paths, spec.disk)
        steps.drain_iterator(rest)
        found = (begun_s, started_s, ended_s, before.resident, after.resident, before.read_bytes, after.read_bytes)
        for name, value in zip(EPOCH_COLUMNS, found):
            edges[name][epoch] = value
        print_json({"epoch": epoch, "step": len(order), "steps": len(order), "e2e_s": round(ended_s - begun_s, 6)})
    return dict(notes.to_arrays(), **edges)


def run_epoch(
    loader: Any, step: Callable[..., StepOutcome], notes: StepTimeTable, epoch: int, workers: int
) -> Tuple[float, float, float, Iterator[Any]]:
    """Run one epoch and record every step in ``notes``.

    Each part is the difference of two time stamps around it and nothing else, so that time spent outside all parts
    shows as missing from their sum. With loader workers the stall ends when the batch was made; the remaining time
    until it arrives is the hand-over.

    Returns:
        The times in seconds at which the epoch began, its workers had started, and it ended; and the iterator, whose
        workers are still alive.
    """
    steps = len(loader)
    begun_s = reported_s = now_s()
    batches = iter(loader)
    started_s, asked_s = now_s(), begun_s
    for i in range(steps):
        batch = next(batches)
        got_s = now_s()
        did = step(batch.images, batch.labels)
        _read_loss_and_hits(did)
        end_s = now_s()
        notes.add_row(
            epoch, i, split_step_time(asked_s, got_s=got_s, end_s=end_s, batch=batch, did=did, workers=workers)
        )
        if end_s - reported_s > PROGRESS_PERIOD_S:
            reported_s = end_s
            print_json({"epoch": epoch, "step": i + 1, "steps": steps})
        asked_s = now_s()
        notes.close_row(asked_s)
    return begun_s, started_s, asked_s, batches


def _read_loss_and_hits(did: StepOutcome) -> Tuple[float, float]:
    """Read the loss and the number of correct predictions, as any training loop does."""
    right = (did.scores.argmax(1) == did.labels).sum()
    return float(did.loss), float(right)


def split_step_time(
    asked_s: float, got_s: float, end_s: float, batch: TimedBatch, did: StepOutcome, workers: int
) -> Tuple[float, ...]:
    """Split a step's time into the columns of ``STEP_COLUMNS`` but the last.

    The batch was requested from the loader at ``asked_s`` and arrived at ``got_s``; the step's results had been read
    at ``end_s``.
    """
    stamps = batch.stamps
    collate_s = stamps.made_s - stamps.gathered_s
    if workers:
        ready_s = min(max(stamps.made_s, asked_s), got_s)
        stall_s, taking_s = ready_s - asked_s, got_s - ready_s
    else:
        stall_s = stamps.fetch_s + stamps.preprocess_s
        taking_s = (stamps.begun_s - asked_s) + collate_s + (got_s - stamps.made_s)
    overhead_s = taking_s + (end_s - did.done_s)
    return (
        asked_s,
        stamps.fetch_s,
        stamps.preprocess_s,
        collate_s,
        stall_s,
        did.copy_s,
        did.compute_s,
        overhead_s,
        taking_s,
    )


def write_arrays(path: Path, arrays: Dict[str, Any]) -> None:
    """Write an .npz file atomically: under a temporary name first, then rename it."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
