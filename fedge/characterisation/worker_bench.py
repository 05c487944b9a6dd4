"""This board under profiling: measured while its own worker trains on generated images, or on the board's samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedge import __version__
from fedge.characterisation.mode_measurement import ProfilingBench
from fedge.client.run_claim import CLAIM_FILE, claim_left_s, explain_refusal, read_claim
from fedge.client.worker_training import (
    STRETCH_LIMIT_S,
    WorkerTraining,
    load_worker_task,
    read_file_task,
    translate_worker_errors,
)
from fedge.clock import RealClock
from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_scaling import load_workload_sizes
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.devices.catalogue import load_catalogue
from fedge.devices.local_board import NodeSettings, open_local_board
from fedge.errors import BadInput, BoardError, WorkerFailed
from fedge.experiment import WorkloadSpec
from fedge.modes import build_grid
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.powerd.powerd_client import PowerdClient, PowerdError
from fedge.protocols import Clock, Device
from fedge.types import Modes, TrainOptions, Workload
from fedge.worker import builtin_tasks
from fedge.worker.refusal import Refusal
from fedge.worker.worker_client import WorkerClient
from fedge.workloads import TASK_FILE_SUFFIX

RESTART_STEPS = 20_000
# A training with more steps is restarted between two modes, because the worker stores loss and accuracy of every step.
ENDLESS_STEPS = 10**9
# Steps announced for every training, so that none ends within a mode.
WAIT_POLL_S = 5.0
# Seconds between two looks at a board that a run works with. Default: little beside the measurement of a mode.
LEARNING_RATE = 1e-3
# Small, so that the weights stay finite over a long campaign; the step time does not depend on it.


@contextmanager
def open_worker_bench(settings: NodeSettings, workload: Workload, seed: int) -> Iterator[ProfilingBench]:
    """Open the bench of this board, which is held during the context; ``workload`` is a built-in task or a task file.

    The bench has the name and the hash by which a run on real boards knows the task.

    Raises:
        BadInput: If the workload has no network here, or no samples.
        BoardError: If the power daemon or the worker fails.
    """
    task, source = _describe_task(workload.name, settings.data_folder)
    own = {"network": str(task["sha256"])} if "sha256" in task else {}
    workload = replace(workload, name=Path(workload.name).stem) if own else workload

    def ready() -> object:
        return load_worker_task(settings.worker_socket, task, source)

    with (
        closing(WorkerClient(settings.worker_socket, STRETCH_LIMIT_S)) as worker,
        open_local_board(settings.place) as here,
    ):
        ready()
        with translate_worker_errors():
            status = worker.status()
        software = {name: str(status[name]) for name in ("python", "torch")} | {"l4t": str(here.identity.l4t)} | own
        work = EndlessTraining(worker, ready, workload.batch_size, seed)
        with here.board.hold():
            bench = build_real_bench(
                here.board,
                workload,
                work.advance,
                here.hottest_c,
                prepare=work.prepare,
                peak_mb=work.peak_mb,
                candidates=build_grid(here.board.spec),
                seed=seed,
                software=software,
            )
            if settings.root != "/":  # power was written into a recorded folder and is not measured
                words = f"a recorded folder ({settings.root}), no board"
                bench = replace(bench, emulated=True, recorded=True, label="estimated", source=words)
            yield bench


def _describe_task(name: str, data_folder: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the task and its data for the worker: generated images, or the samples in the board's own folder."""
    own = name.endswith(TASK_FILE_SUFFIX)
    if not own:
        try:
            generated = not builtin_tasks.builtin_shape(name).sample
        except Refusal as error:
            raise BadInput("--workload", error.got, error.right) from error
        if generated:
            return {"builtin": name}, builtin_tasks.synthetic_source(name)
    if data_folder is None:
        got = f"{name}, whose samples cannot be generated"
        raise BadInput("--workload", got, "data_folder in the board's settings, as for a run")
    return read_file_task(name, Path(name)) if own else {"builtin": name}, {"folder": data_folder}


def wait_for_board(
    settings: NodeSettings,
    limit_s: float,
    note: Callable[[str], None],
    *,
    clock: Clock | None = None,
    wall_s: Callable[[], float] = time.time,
) -> float:
    """Wait until no run works with this board; return the seconds waited.

    Args:
        settings: The board's settings.
        limit_s: Seconds to wait at most; 0 to refuse at once.
        note: Shows the reason of the wait, once.
        clock: The machine's by default.
        wall_s: Returns Unix time in seconds, in which claims of runs count.

    Raises:
        BoardError: A run works with it for longer; names the run.
    """
    pause = clock or RealClock()
    began_s, reason = pause.now_s(), _explain_use(settings, wall_s())
    if reason is not None and limit_s > 0.0:
        note(f"waiting: {reason}")
    while reason is not None:
        if pause.now_s() - began_s >= limit_s:
            raise BoardError(reason)
        pause.sleep_s(WAIT_POLL_S)
        reason = _explain_use(settings, wall_s())
    return pause.now_s() - began_s


def _explain_use(settings: NodeSettings, now_s: float) -> str | None:
    """Return which run works with the board, from its claim, or who holds its power daemon; None if nobody does."""
    claim = read_claim(settings.state_dir / CLAIM_FILE)
    left_s = claim_left_s(claim, "", now_s)
    if claim is not None and left_s > 0.0:
        return explain_refusal(settings.board, claim, left_s)
    try:
        with closing(PowerdClient(settings.power_socket)) as power:
            lease = power.get()["lease"]
    except PowerdError:  # a workstation has no daemon, and of a board the bench says what is wrong with it
        return None
    return None if lease is None else f"{settings.board} is held by {lease['name']}; wait, or stop that program"


class EndlessTraining:
    """Unlimited training steps in the worker from a new model; ``ready`` loads the task."""

    def __init__(self, worker: WorkerClient, ready: Callable[[], object], batch_size: int, seed: int) -> None:
        self._worker, self._ready, self._seed = worker, ready, seed
        self._options = TrainOptions(ENDLESS_STEPS, batch_size, LEARNING_RATE)
        self._training: WorkerTraining | None = None
        self._done = 0

    def prepare(self) -> None:
        """Begin a training if none is running or the current one is long; nothing is measured meanwhile."""
        if self._training is None or self._done > RESTART_STEPS:
            self._ready()
            self._training = WorkerTraining(self._worker, arrays={}, share=None, seed=self._seed, options=self._options)
            self._done = 0

    def peak_mb(self) -> float | None:
        """Return the peak memory of the training in MB; None if the worker reports none."""
        return None if self._training is None else self._training.peak_mb

    def advance(self, steps: int) -> None:
        """Run the next ``steps`` steps; after a failure, ``prepare`` begins a new training."""
        if self._training is None:
            self.prepare()
        assert self._training is not None
        try:
            self._training.advance(steps)
        except WorkerFailed:
            self._training = None
            raise
        self._done += steps


def build_real_bench(
    device: Device,
    workload: Workload,
    work: Callable[[int], object],
    temperature_c: Callable[[], float | None],
    *,
    prepare: Callable[[], object] = lambda: None,
    peak_mb: Callable[[], float | None] = lambda: None,
    clock: Clock | None = None,
    candidates: Modes | None = None,
    seed: int = 0,
    software: Mapping[str, str] | None = None,
) -> ProfilingBench:
    """Build the bench of a real board; the arguments are fields of ``ProfilingBench``.

    ``candidates`` are by default the modes above the usual floor; ``software`` has further versions that the figures
    depend on (torch, L4T).
    """
    chosen = candidates
    if chosen is None:
        every = build_grid(device.spec)
        chosen = Modes(every.knobs[mask_above_floor(every)])
    pause = clock or RealClock()
    priors = build_priors(device.spec, workload.name, load_catalogue(), batch_size=workload.batch_size, layered=False)
    return ProfilingBench(
        board=device.spec.name,
        device=device,
        workload=workload,
        work=work,
        idle_for=pause.sleep_s,
        temperature_c=temperature_c,
        clock=pause,
        candidates=chosen,
        knowledge=PriorKnowledge(device.spec.maxn, tuple(prior.coefficients for prior in priors), seed=seed),
        label="measured",
        source=f"measured on a {device.spec.title}",
        total_power=getattr(device, "total_power", device.spec.total_power),
        emulated=False,
        software={"fedge": __version__, **(software or {})},
        prepare=prepare,
        peak_mb=peak_mb,
    )


def resolve_workload(name: str, batch_size: int | None) -> Workload:
    """Return a workload at ``batch_size``, by default at its own, or at that of an experiment if it has none.

    Raises:
        BadInput: If the batch size is not positive.
    """
    if batch_size is not None:
        if batch_size < 1:
            raise BadInput("--batch-size", str(batch_size), "a whole number above 0")
        return Workload(name, batch_size)
    known = load_workload_sizes().get(name)
    return Workload(name, WorkloadSpec().batch_size if known is None else known.batch_size)
