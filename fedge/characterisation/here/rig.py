"""The rig of the machine at hand: every point in a process of its own, on real files, timed by real clocks."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fedge import __version__
from fedge.characterisation.here import cache, data, program, runtimes
from fedge.characterisation.here.ground import Ground
from fedge.characterisation.here.jetson import Jetson
from fedge.characterisation.here.looking import Eyes, Looking
from fedge.characterisation.here.ordinary import Ordinary
from fedge.characterisation.here.outcome import Story, seen_of
from fedge.characterisation.here.proc import Work
from fedge.characterisation.here.rapl import Rapl
from fedge.characterisation.plans.plan import Course, Plan, WorkloadPlan
from fedge.characterisation.point import Point
from fedge.characterisation.rig import Rig, Told
from fedge.characterisation.seen import Seen
from fedge.devices.here import Place
from fedge.errors import BadInput, BoardError
from fedge.types import PowerMode

WORK = ".measuring"
"""Below the sweep's folder: what a point's process reads and writes; gone when the point is done."""
GPUS = ("dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/nvgpu")
"""Device files of which one is there where CUDA can be."""


def rig_here(plan: Plan, folder: Path, place: Place | None = None) -> Rig:
    """The rig of this machine for a plan whose sweep's folder is ``folder``.

    A power daemon at ``place``'s socket makes it a Jetson's; raises ``BoardError`` for one that does not answer, or
    whose board nobody knows.
    """
    place = place or Place(holder="fedge characterise")
    if Path(place.power_socket).exists():
        return RigHere(plan, folder, Jetson(place), place)
    compares_clocks = any("dvfs" in knobs for knobs in plan.swept)
    return RigHere(plan, folder, Ordinary(strict=compares_clocks, socket=place.power_socket), place)


class RigHere:
    """``ground`` is the kind of machine, ``place`` where its daemon and files are."""

    def __init__(self, plan: Plan, folder: Path, ground: Ground, place: Place) -> None:
        self._plan, self._folder, self._ground, self._place = plan, folder.resolve(), ground, place

    @property
    def maxn(self) -> PowerMode | None:
        """The top power mode; None where modes cannot be set."""
        return self._ground.maxn

    @cached_property
    def software(self) -> dict[str, str]:
        """The machine, and the packages behind the figures."""
        return {"fedge": __version__, **runtimes.packages(), **self._ground.software}

    def refuses(self, point: Point, workload: WorkloadPlan) -> str | None:
        """Why the point cannot be measured here."""
        return (
            _why_not_loaded(point, workload, self._has_gpu())
            or self._ground.refuses(point)
            or data.why_not(self._plan, self._folder, point, workload)
            or runtimes.why_not(point.runtime)
        )

    def measure(self, point: Point, workload: WorkloadPlan, course: Course, told: Told) -> Seen:
        """Measure a point; raises ``BoardError``, also for a mistake in the workload that only trying it shows."""
        begun_s = time.monotonic()
        try:
            images = data.data_set(self._plan, self._folder, point, workload, told)
        except BadInput as error:
            raise BoardError(str(error)) from error
        told("fills the page cache" if point.cache == "warm" else "drops the page cache")
        notes = cache.bring(images.cached_files, point.cache, drop_all=self._drop_all)
        with self._work() as work, self._ground.held(point) as held:
            story = self._run(point, _spec(point, workload, course, images), work, images, course, told)
            story.notes = (*notes, *story.notes)
            return seen_of(point, story, held, self._ground, images, begun_s)

    def rest(self, seconds: float) -> None:
        """Let the machine do nothing for so long."""
        time.sleep(seconds)

    def _run(
        self, point: Point, spec: Mapping[str, Any], work: Path, images: data.DataSet, course: Course, told: Told
    ) -> Story:
        """The measuring program from its start to its end, the machine looked at meanwhile."""
        runtime = runtimes.parsed(point.runtime)
        if isinstance(runtime, str):
            raise BoardError(runtime)
        name = f"fedge-{point.key}-{os.getpid()}"
        (work / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        out = work / "minibatches.npz"
        folders = [images.place, *(Path(folder) for folder in spec["modules"])]
        command = runtimes.command(runtime, work / "spec.json", out, folders, name)
        eyes = Eyes(images.mount.disk, Rapl.found(self._place.root) if self._ground.meter is None else None)
        facts: dict[str, Any] = {}

        def heard(said: Mapping[str, Any]) -> None:
            if "torch" in said:
                facts.update(said)
                eyes.pid = runtimes.outer_pid(runtime, name) or eyes.pid
            elif "step" in said:
                told(f"epoch {said['epoch'] + 1} of {course.epochs}, minibatch {said['step']} of {said['steps']}")

        def started(pid: int) -> None:
            eyes.pid = pid if runtime.engine is None else None

        before = Work.now()
        try:
            with Looking(eyes, course.sample_hz) as looking:
                program.run(command, heard, environment=runtimes.environment(), started=started)
        finally:
            runtimes.remove(runtime, name)
        others = Work.now().others_since(before) if runtime.engine is None else None
        return Story(out, tuple(looking.looks), facts, eyes.rapl is not None, others)

    @contextmanager
    def _work(self) -> Iterator[Path]:
        """A folder for a point's process; one that a killed sweep left behind is cleared."""
        work = self._folder / WORK
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _drop_all(self) -> str | None:
        return cache.drop_whole(self._place.power_socket)

    def _has_gpu(self) -> bool:
        root = Path(self._place.root)
        return any(next(root.glob(pattern), None) is not None for pattern in GPUS)


def _why_not_loaded(point: Point, workload: WorkloadPlan, has_gpu: bool) -> str | None:
    """Why the loader or the workload cannot be as asked."""
    if point.board != "here":
        return f"board {point.board} is not this machine, which is called here"
    if point.pinned and not has_gpu:
        return "pinned: true needs a CUDA device; without one nothing is copied to a device"
    if workload.images.count < point.batch_size:
        return f"batch_size {point.batch_size} is more than the {workload.images.count} images of an epoch"
    if workload.input[0] not in (1, 3):
        return f"input of {workload.input[0]} channels; it must have 1 or 3"
    return None


def _spec(point: Point, workload: WorkloadPlan, course: Course, images: data.DataSet) -> dict[str, Any]:
    """What the measuring program is told."""
    return {
        "model": workload.model,
        "shape": list(workload.input),
        "classes": workload.classes,
        "data": images.spec,
        "images": workload.images.count,
        "kind": point.kind,
        "batch_size": point.batch_size,
        "workers": point.workers,
        "prefetch": point.prefetch,
        "pinned": point.pinned,
        "learning_rate": workload.learning_rate,
        "momentum": workload.momentum,
        "epochs": course.epochs,
        "minibatches": course.minibatches,
        "seed": point.repeat,
        "disk": images.mount.disk,
        "modules": [str(Path.cwd())] if ":" in workload.model else [],
        "leash": True,
    }
