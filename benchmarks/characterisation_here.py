"""Checks of what characterising says of this machine: parts against the whole, the cost of looking, stall by workers.

    python benchmarks/characterisation_here.py [sums|cost|stall]... [--repeats 5]

sums    fetch + preprocess + copy + compute + overhead against an epoch from end to end, without workers, for several
        settings: must be within 2 %
cost    the same loop with and without stamps, in turns, at a minibatch of about 20 ms, and the stamps alone, counted:
        must be below 1 %
stall   how long the training waits with 0, 1, 2 and 4 loader workers, where loading is the longer part and where
        computing is; with the pipeline model's figures beside it

Every table says how noisy the machine was. Nothing else should run on it meanwhile.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from figures import build_table, run_parts
from rich.console import Console
from rich.table import Table

from fedge.characterisation.local_rig import build_local_rig
from fedge.characterisation.point_measurement import EpochSummary, MinibatchTimes, PointMeasurement
from fedge.characterisation.sweep_plan import (
    CharacterisationPlan,
    Images,
    MeasurementSchedule,
    StoragePlan,
    SweepPoint,
    WorkKind,
    WorkloadPlan,
)

if TYPE_CHECKING:
    from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans

CONSOLE = Console(width=170)
SMALL, LARGE = Images(count=960, width=320, height=240), Images(count=640, width=640, height=480)
LENET = WorkloadPlan(name="lenet", model="lenet5", input=(3, 64, 64), classes=10, images=SMALL)
WORKLOADS = {
    "lenet": LENET,
    "lenet, large files": WorkloadPlan(
        name="lenet, large files", model="lenet5", input=(3, 64, 64), classes=10, images=LARGE
    ),
    "mobilenet": WorkloadPlan(
        name="mobilenet", model="mobilenet_v3_small", input=(3, 96, 96), classes=10, images=SMALL
    ),
    "cnn, light": WorkloadPlan(name="cnn, light", model="digits-cnn", input=(3, 32, 32), classes=10, images=SMALL),
    "cnn, large files": WorkloadPlan(
        name="cnn, large files", model="digits-cnn", input=(3, 32, 32), classes=10, images=LARGE
    ),
}
SUMS: tuple[tuple[str, WorkKind, int], ...] = (
    ("lenet", "train", 16),
    ("lenet", "train", 4),
    ("lenet, large files", "train", 16),
    ("lenet, large files", "infer", 16),
    ("mobilenet", "train", 16),
    ("mobilenet", "infer", 32),
    ("cnn, light", "infer", 16),
)
STALLED = ("cnn, large files", "cnn, light", "mobilenet")
"""In the first loading dominates by far, in the second it is the longer part, and in the third computing is."""
WORKERS = (0, 1, 2, 4)
WITHIN, BELOW = 0.02, 0.01
KNOWN_WORKERS = ((0,), (0, 1))
"""Numbers of workers whose measurements the pipeline model is fitted to."""
QUIET_CORES = 0.1
"""Load of other processes, in cores, below which a point counts as undisturbed."""
MAX_TRIES = 3
"""Tries of a point that others disturb."""
NO_STALL_SHARE = 0.02
"""A stall below this share of the step counts as none."""
MINIBATCH_S = 0.020
STEPS = 6
"""Steps of one turn of the loop that is timed with and without stamps."""


@dataclass(frozen=True)
class HostBench:
    """Where data and results are stored, and how often everything is measured."""

    folder: Path
    repeats: int
    others: list[float] = field(default_factory=list)
    """Load of other processes during each point that was kept, in cores."""

    def measure_points(self, points: Sequence[SweepPoint], course: MeasurementSchedule) -> Iterator[PointMeasurement]:
        """Measure each point the requested number of times, in random order."""
        storages = {"default": StoragePlan(name="default", path=str(self.folder))}
        plan = CharacterisationPlan(
            "bench", boards=("here",), workloads=WORKLOADS, storages=storages, course=course, points=tuple(points)
        )
        rig = build_local_rig(plan, self.folder)
        todo = [point for point in points for _ in range(self.repeats)]
        random.Random(0).shuffle(todo)
        self.others.clear()
        for n, point in enumerate(todo):
            workload = WORKLOADS[point.workload]
            if reason := rig.refusal_reason(point, workload):
                raise SystemExit(reason)
            with CONSOLE.status(f"{n + 1} of {len(todo)}: {point.workload}, {point.workers} workers"):
                yield self._measure_quietest(
                    lambda point=point, workload=workload: rig.measure(point, workload, course, lambda _: None)
                )

    def _measure_quietest(self, measure: Callable[[], PointMeasurement]) -> PointMeasurement:
        """Repeat a measurement while others disturb it, up to a limit, and return the least disturbed one."""
        tries: list[tuple[float, PointMeasurement]] = []
        while len(tries) < MAX_TRIES and (not tries or tries[-1][0] > QUIET_CORES):
            seen = measure()
            tries.append((seen.parameters["others_cores"], seen))
        others, seen = min(tries, key=lambda one: one[0])
        self.others.append(others)
        return seen

    def describe_noise(self) -> str:
        """Describe the load of other processes meanwhile, in cores."""
        loud = sum(others > QUIET_CORES for others in self.others)
        return (
            f"others kept {np.median(self.others):.2f} of {os.cpu_count()} cores busy (median of {len(self.others)} "
            f"points, most {max(self.others):.2f}); {loud} points were never seen with less than {QUIET_CORES:g}"
        )


def _format_spread(values: Sequence[float]) -> str:
    middle = float(np.median(values))
    return f"{1e3 * middle:.2f} ({1e3 * min(values):.2f}..{1e3 * max(values):.2f})"


def report_sums(bench: HostBench) -> None:
    """Report every epoch after the first one, of every setting."""
    points = [SweepPoint("here", name, kind=kind, batch_size=size, cache="warm") for name, kind, size in SUMS]
    missing: dict[str, list[float]] = {point.key: [] for point in points}
    took: dict[str, list[float]] = {point.key: [] for point in points}
    for seen in bench.measure_points(points, MeasurementSchedule(epochs=3)):
        missing[seen.point.key] += [1 - _sum_parts_s(epoch) / epoch.e2e_s for epoch in seen.epochs[1:]]
        took[seen.point.key] += [epoch.e2e_s / epoch.steps for epoch in seen.epochs[1:]]
    title = f"What no part holds of an epoch, % of it; warm cache, no workers; {bench.describe_noise()}"
    headings = ("workload", "kind", "batch", "epochs", "minibatch ms (least..most)", "missing %", "worst %", "")
    table = build_table(title, *headings, left=headings)
    for point in points:
        lacking = missing[point.key]
        worst = max(lacking, key=abs)
        verdict = "within 2 %" if abs(worst) <= WITHIN else "TOO MUCH"
        figures = (_format_spread(took[point.key]), f"{100 * np.median(lacking):.3f}", f"{100 * worst:.3f}", verdict)
        table.add_row(point.workload, point.kind, str(point.batch_size), str(len(lacking)), *figures)
    CONSOLE.print(table)


def _sum_parts_s(epoch: EpochSummary) -> float:
    return epoch.fetch_s + epoch.preprocess_s + epoch.copy_s + epoch.compute_s + epoch.overhead_s


def report_stamp_cost(bench: HostBench) -> None:
    """Report wall and CPU time with and without stamps in turns, in random order within a pair."""
    stamped, plain = _build_loops(bench)
    pairs = 60 * bench.repeats
    chance = random.Random(1)
    for loop in (stamped, plain):
        _time_loop(loop)
    seconds = {stamped: [], plain: []}  # type: dict[Callable[[], None], list[tuple[float, float]]]
    for _ in range(pairs):
        order = [stamped, plain]
        chance.shuffle(order)
        for loop in order:
            seconds[loop].append(_time_loop(loop))
    load = f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"
    title = f"The same loop with stamps and without, {pairs} pairs of {STEPS} minibatches; {load}"
    headings = ("clock", "with: ms (least..most)", "without: ms (least..most)", "more, %", "95 % interval")
    table = build_table(title, *headings, left=headings)
    for k, clock in enumerate(("wall", "processor time")):
        mine, theirs = ([one[k] / STEPS for one in seconds[loop]] for loop in (stamped, plain))
        middle, low, high = _median_ratio(np.array(mine) / np.array(theirs))
        interval = f"{100 * low:+.2f} .. {100 * high:+.2f}"
        table.add_row(clock, _format_spread(mine), _format_spread(theirs), f"{100 * middle:+.2f}", interval)
    CONSOLE.print(table)
    counted_s = _measure_stamp_cost_s()
    share = counted_s / MINIBATCH_S
    verdict = "below 1 %" if share < BELOW else "TOO MUCH"
    CONSOLE.print(
        f"The stamps and notes alone, counted: {1e6 * counted_s:.1f} us for each minibatch, "
        f"{100 * share:.3f} % of {1e3 * MINIBATCH_S:g} ms: {verdict}"
    )


def _build_loops(bench: HostBench) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return an epoch of the measuring program's own loop, and one of a loop without stamps, over the same batches."""
    import torch

    from fedge.worker import epoch_profiler, generated_images
    from fedge.worker import step_timers as loading
    from fedge.worker import step_timers as steps
    from fedge.worker.builtin_tasks import make_network

    torch.set_num_threads(1)
    images = LENET.images
    place = generated_images.make_images(
        str(bench.folder), generated_images.ImageSetSpec(images.count, images.width, images.height)
    )
    files = generated_images.list_image_files(str(place))
    samples = loading.ImageFiles(files, loading.ImageTransform(LENET.input))
    bare = _build_plain_dataset(files, loading.ImageTransform(LENET.input))
    work = steps.make_step_function(make_network(LENET.model, LENET.input, LENET.classes), "train", 0.01, 0.9)
    step = steps.time_on_host(work)
    batches = loading.plan_batches(images.count, batch_size=16, most=STEPS, seed=0, epoch=0)
    how = loading.TimedLoaderSettings(16)

    def stamped() -> None:
        loader = loading.make_loader(samples, how, batches)
        epoch_profiler.run_epoch(loader, step=step, notes=epoch_profiler.StepTimeTable(STEPS), epoch=0, workers=0)

    def plain() -> None:
        for pixels, labels in loading.make_loader(bare, how, batches, collate=None):
            loss, scores = work(pixels, labels)
            float(loss)
            float((scores.argmax(1) == labels).sum())

    return stamped, plain


def _build_plain_dataset(files, prepared):
    """Build the same data set without fedge's code."""
    from torch.utils.data import Dataset

    class Bare(Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, i):
            path, label = files[i]
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- as the stamped one does
                content = file.read()
            return prepared.decode(content), label

    return Bare()


def _time_loop(loop: Callable[[], None]) -> tuple[float, float]:
    wall_s, processor_s = time.monotonic(), time.process_time()
    loop()
    return time.monotonic() - wall_s, time.process_time() - processor_s


def _median_ratio(ratios: np.ndarray) -> tuple[float, float, float]:
    """Return the median of the pairs' ratios less 1, and its interval from 4,000 bootstrap samples of the pairs."""
    drawn = np.median(np.random.default_rng(0).choice(ratios, (4000, len(ratios))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(np.median(ratios)) - 1, float(low) - 1, float(high) - 1


def _measure_stamp_cost_s() -> float:
    """Return the seconds per step of all recording: reading the clock, adding up, writing down."""
    from fedge.worker import epoch_profiler
    from fedge.worker import step_timers as loading

    now_s, batch_size, turns = loading.now_s, 16, 5000
    notes = epoch_profiler.StepTimeTable(turns)
    did = argparse.Namespace(done_s=now_s(), copy_s=0.0, compute_s=0.0)

    def turn(k: int) -> None:
        samples = [(None, 0, now_s(), now_s(), now_s()) for _ in range(batch_size)]
        gathered_s, fetch_s, preprocess_s = now_s(), 0.0, 0.0
        for _, _, begun_s, fetched_s, done_s in samples:
            fetch_s += fetched_s - begun_s
            preprocess_s += done_s - fetched_s
        stamps = loading.BatchStamps(
            fetch_s, preprocess_s=preprocess_s, begun_s=samples[0][2], gathered_s=gathered_s, made_s=now_s()
        )
        batch = loading.TimedBatch(None, None, stamps)  # type: ignore[arg-type]
        asked_s, got_s, _, _, end_s, closed_s = (now_s() for _ in range(6))
        notes.add_row(
            0, k, epoch_profiler.split_step_time(asked_s, got_s=got_s, end_s=end_s, batch=batch, did=did, workers=0)
        )
        notes.close_row(closed_s)

    begun_s = time.process_time()
    for k in range(turns):
        turn(k)
    return (time.process_time() - begun_s) / turns


def report_stalls(bench: HostBench) -> None:
    """Report means of the steps after the first epoch, the median of undisturbed repeats, and the model's figures."""
    points = [SweepPoint("here", name, workers=workers, cache="warm") for name in STALLED for workers in WORKERS]
    seen: dict[str, list[PointMeasurement]] = {point.key: [] for point in points}
    for one in bench.measure_points(points, MeasurementSchedule(epochs=3, sample_hz=2)):
        seen[one.point.key].append(one)
    crowding = _measure_crowding()
    CONSOLE.print(f"decoding on all {os.cpu_count()} cores at once takes {1 + crowding:.3f} times as long as on one")
    for name in STALLED:
        own = {point.workers: _select_undisturbed(seen[point.key]) for point in points if point.workload == name}
        models = [predict_stalls(own, known, crowding) for known in KNOWN_WORKERS]
        CONSOLE.print(_build_stall_table(name, bench.describe_noise(), own, models))


def _select_undisturbed(repeats: list[PointMeasurement]) -> list[PointMeasurement]:
    """Return the repeats with hardly any other load, or all if there are none."""
    return [one for one in repeats if one.parameters["others_cores"] <= QUIET_CORES] or repeats


def _build_stall_table(
    name: str, noise: str, own: dict[int, list[PointMeasurement]], predicted: Sequence[dict[int, float]]
) -> Table:
    columns = ("workers", "stall", "fetch", "preprocess", "collate", "compute", "overhead", "of it taking", "step")
    beside = [text for known in KNOWN_WORKERS for text in (f"model of {' and '.join(map(str, known))}", "off %")]
    headings = (*columns, *beside, "fall", *("off %" for _ in KNOWN_WORKERS))
    title = f"{name}: ms per minibatch of 16, median of repeats (least..most); {noise}"
    table = build_table(title, *headings, left=headings)
    inline_s = 0.0
    for workers, points in own.items():
        late = [_drop_start_up(one) for one in points]
        middle = {part: [float(getattr(one, f"{part}_s").mean()) for one in late] for part in PER_MINIBATCH}
        collate, taking = ([one.parameters[f"{part}_s"] for one in points] for part in ("collate", "taking"))
        cells = [_format_spread(middle[part]) for part in ("stall", "fetch", "preprocess")]
        cells += [_format_spread(collate), *(_format_spread(middle[part]) for part in ("compute", "overhead"))]
        cells += [_format_spread(taking), _format_spread(middle["step"])]
        stall_s = float(np.median(middle["stall"]))
        inline_s = stall_s if workers == 0 else inline_s
        cells += [
            cell
            for model in predicted
            for cell in _format_prediction(stall_s, float(np.median(middle["step"])), model[workers])
        ]
        falls = (
            f"{100 * (inline_s - model[workers]) / max(inline_s - stall_s, 1e-9) - 100:+.1f}" for model in predicted
        )
        cells += [f"{1e3 * (inline_s - stall_s):.2f}", *falls] if workers else []
        table.add_row(str(workers), *cells)
    return table


PER_MINIBATCH = ("stall", "fetch", "preprocess", "compute", "overhead", "step")


def _format_prediction(measured_s: float, step_s: float, predicted_s: float) -> tuple[str, str]:
    """Format a prediction; the error of a negligible stall is given in percent of the step."""
    if measured_s < NO_STALL_SHARE * step_s:
        return f"{1e3 * predicted_s:.2f}", f"{100 * (predicted_s - measured_s) / step_s:+.1f} of step"
    return f"{1e3 * predicted_s:.2f}", f"{100 * (predicted_s / measured_s - 1):+.1f}"


def _drop_start_up(seen: PointMeasurement) -> MinibatchTimes:
    """Drop the first epoch, and the first step of each, whose stall includes the start of the workers."""
    return seen.read_minibatches().select((seen.read_minibatches().epoch > 0) & (seen.read_minibatches().step > 0))


def predict_stalls(own: dict[int, list[PointMeasurement]], known: Sequence[int], crowding: float) -> dict[int, float]:
    """Return the mean stall in seconds by number of workers, from the model fitted to the ``known`` numbers alone.

    Epochs as long as the measured ones are simulated and evaluated from their second step on, like those.
    """
    from fedge.costs.input_pipeline.epoch_simulation import simulate_epoch
    from fedge.costs.input_pipeline.pipeline_fit import fit_pipeline, with_loader

    means = [_median_means(own[workers]) for workers in known]
    pipeline = fit_pipeline(means, cores=float(os.cpu_count() or 1), crowding=crowding)
    steps = own[known[0]][0].epochs[-1].steps
    return {workers: float(simulate_epoch(with_loader(pipeline, workers), steps).stall_s[1:].mean()) for workers in own}


def _measure_crowding() -> float:
    """Measure how much slower decoding is when every core decodes: 0.1 means 1.1 times as long."""
    context = multiprocessing.get_context("spawn")
    cores = os.cpu_count() or 1

    def pace(processes: int) -> float:
        with context.Pool(processes) as pool:
            pool.map(_measure_decode_rate, [0.1] * processes)
            return float(np.mean(pool.map(_measure_decode_rate, [2.0] * processes, chunksize=1)))

    return max(0.0, float(np.median([pace(1) / pace(cores) for _ in range(3)])) - 1.0)


def _measure_decode_rate(seconds: float) -> float:
    """Return the photographs decoded and scaled per second."""
    from PIL import Image

    grain = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(grain).resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    raw, begin_s, count = buffer.getvalue(), time.perf_counter(), 0
    while time.perf_counter() - begin_s < seconds:
        Image.open(io.BytesIO(raw)).convert("RGB").resize((32, 32))
        count += 1
    return count / (time.perf_counter() - begin_s)


def _median_means(points: Sequence[PointMeasurement]) -> LoaderMeans:
    """Return the repeats' median of each part's mean."""
    from fedge.costs.input_pipeline.pipeline_fit import LoaderMeans

    point, late = points[0].point, [_drop_start_up(one) for one in points]
    names = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s")
    middle = {name: float(np.median([getattr(one, name).mean() for one in late])) for name in names}
    return LoaderMeans(point.workers, point.prefetch, point.batch_size, **middle)


def run_on_host(report: Callable[[HostBench], None], repeats: int) -> None:
    """Run one part with images in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fedge-characterisation-") as folder:
        report(HostBench(Path(folder), repeats))


PARTS = {
    name: partial(run_on_host, report)
    for name, report in (("sums", report_sums), ("cost", report_stamp_cost), ("stall", report_stalls))
}

if __name__ == "__main__":
    run_parts(__doc__, PARTS, repeats=5)
