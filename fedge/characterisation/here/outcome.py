"""From what the measuring program wrote, and what was seen beside it, to a finished point."""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.characterisation.here import rapl, strips
from fedge.characterisation.here.data import DataSet
from fedge.characterisation.here.ground import Ground, Held, Metered
from fedge.characterisation.here.looking import Look
from fedge.characterisation.point import Point
from fedge.characterisation.seen import DISTURBED_CORES, Epoch, Minibatches, Seen
from fedge.errors import BoardError

SUMS = ("fetch_s", "preprocess_s", "stall_s", "copy_s", "compute_s", "overhead_s")
Arrays = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class Story:
    """A run of the measuring program: its file, the looks at the machine, and what it said of itself."""

    out: Path
    looks: tuple[Look, ...]
    facts: Mapping[str, Any]
    by_rapl: bool = False
    others: float | None = None
    """Cores that others kept busy meanwhile; None where nobody can tell."""
    notes: tuple[str, ...] = field(default=())


def seen_of(point: Point, story: Story, held: Held, ground: Ground, images: DataSet, begun_s: float) -> Seen:
    """The finished point; times count from ``begun_s``. Raises ``BoardError`` for a file that cannot be read."""
    arrays = _read(story.out)
    epochs = tuple(_epoch(arrays, k, story, held) for k in range(len(arrays["begun_s"])))
    metered = epochs[0].energy_j is not None
    return Seen(
        point=point,
        minibatches=_minibatches(arrays, begun_s),
        epochs=epochs,
        strip=held.completed(strips.strip_of(story.looks, begun_s), begun_s),
        label="measured",
        source=_source(point, story, ground, images, metered),
        seconds=time.monotonic() - begun_s,
        notes=(*story.notes, *held.notes, *_disturbed(story)),
        power_label="measured" if metered else None,
        parameters=_parameters(arrays, story, images),
    )


def _disturbed(story: Story) -> tuple[str, ...]:
    if story.others is None or story.others <= DISTURBED_CORES:
        return ()
    return (f"others kept {story.others:.2f} cores busy meanwhile: what shares cores with them took longer",)


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise BoardError(f"what the measuring program wrote cannot be read: {error}") from error


def _minibatches(arrays: Arrays, begun_s: float) -> Minibatches:
    times = {name: arrays[name] for name in (*SUMS, "step_s")}
    return Minibatches(epoch=arrays["epoch"], step=arrays["step"], start_s=arrays["start_s"] - begun_s, **times)


def _epoch(arrays: Arrays, k: int, story: Story, held: Held) -> Epoch:
    start_s, end_s = float(arrays["begun_s"][k]), float(arrays["ended_s"][k])
    own = arrays["epoch"] == k
    looks, metered = story.looks, held.metered(start_s, end_s)
    energy_j = (
        metered.energy_j if metered.energy_j is not None else strips.grown(looks, "joules_so_far", start_s, end_s)
    )
    return Epoch(
        epoch=k,
        steps=int(own.sum()),
        e2e_s=end_s - start_s,
        **{name: float(arrays[name][own].sum()) for name in SUMS},
        energy_j=energy_j,
        power_w=None if energy_j is None else energy_j / (end_s - start_s),
        cpu_load=strips.load(looks, start_s, end_s),
        gpu_load=metered.gpu_load,
        memory_mb=strips.highest(looks, "memory_mb", start_s, end_s),
        disk_read_mb=_disk_read_mb(arrays, k, looks),
        resident_before=_or_none(arrays["resident_before"][k]),
        resident_after=_or_none(arrays["resident_after"][k]),
        temperature_c=_hottest(metered, looks, start_s, end_s),
        throttled=metered.throttled,
    )


def _hottest(metered: Metered, looks: tuple[Look, ...], start_s: float, end_s: float) -> float | None:
    return metered.temperature_c or strips.highest(looks, "temperature_c", start_s, end_s)


def _disk_read_mb(arrays: Arrays, k: int, looks: tuple[Look, ...]) -> float | None:
    """By the program's own reading at the epoch's ends; without a block device by what its processes made be read."""
    exact = float(arrays["read_bytes_after"][k] - arrays["read_bytes_before"][k])
    if not math.isnan(exact):
        return exact / 1e6
    grew = strips.grown(looks, "read_bytes_so_far", float(arrays["begun_s"][k]), float(arrays["ended_s"][k]))
    return None if grew is None else grew / 1e6


def _source(point: Point, story: Story, ground: Ground, images: DataSet, metered: bool) -> str:
    facts = story.facts
    own = ground.meter or (rapl.SOURCE if story.by_rapl else None)
    clock = "the monotonic clock" if facts.get("device") == "cpu" else "CUDA events and the monotonic clock"
    power = f"; power by {own}" if metered and own else ""
    return (
        f"measured on {ground.title}: {facts.get('device')}, torch {facts.get('torch')} with {_threads(facts)}, "
        f"Python {facts.get('python')}, {point.runtime}, by {clock}; images on {images.mount} "
        f"at {images.place}{power}"
    )


def _parameters(arrays: Arrays, story: Story, images: DataSet) -> dict[str, float]:
    """What else whoever models the point wants to know; means over the minibatches after the first epoch.

    ``collate_s`` is stacking a batch; ``taking_s`` the part of the overhead before a batch is here (collating and the
    loader's own work without workers, the handing over with them); ``start_s`` what starting all workers took the
    training, in the last epoch; ``file_mb`` an image file's mean size; ``threads`` are torch's;
    ``others_cores`` are those that other programs kept busy.
    """
    late: NDArray[np.bool_] = arrays["epoch"] > 0
    kept = late if late.any() else np.ones(len(late), bool)
    others = {} if story.others is None else {"others_cores": story.others}
    return others | {
        "collate_s": float(arrays["collate_s"][kept].mean()),
        "taking_s": float(arrays["taking_s"][kept].mean()),
        "start_s": float((arrays["started_s"] - arrays["begun_s"])[-1]),
        "file_mb": images.file_mb,
        "threads": float(story.facts.get("threads", 1)),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _threads(facts: Mapping[str, Any]) -> str:
    count = facts.get("threads")
    return "one thread" if count == 1 else f"{count} threads"
