"""A small made-up pair of jobs: 36 modes on a grid, inference at batches of 1, 4 and 16, in memory or as files."""

import itertools
from pathlib import Path

import numpy as np

from fedge.devices.tables.mode_table import LABEL_COLUMN, TABLE_COLUMNS
from fedge.serving.job_pair import JobPair
from fedge.types import Modes

SIZES = (1, 4, 16)
KNOBS = ((4, 8, 12), (800.0, 2200.0), (300.0, 700.0, 1300.0), (2100.0, 3200.0))


def modes() -> Modes:
    return Modes(np.array(list(itertools.product(*KNOBS)), dtype=np.float64))


def seconds(base_s: float) -> np.ndarray:
    """Faster with every knob."""
    cores, cpu, gpu, mem = modes().knobs.T
    shares: np.ndarray = 0.5 * 1300.0 / gpu + 0.2 * 3200.0 / mem + 0.2 * 2200.0 / cpu + 0.1 * 12.0 / cores
    return base_s * shares


def watts(base_w: float) -> np.ndarray:
    """More with every knob."""
    cores, cpu, gpu, mem = modes().knobs.T
    return base_w + 12.0 * gpu / 1300.0 + 6.0 * cores / 12.0 * cpu / 2200.0 + 4.0 * mem / 3200.0


def pair(*, trains: bool = True, infers: bool = True) -> JobPair:
    """Training of 40 ms and inference of 10 to 75 ms at the top."""
    none = np.empty(0)
    sizes = SIZES if infers else ()
    infer_s = np.stack([seconds(0.006 + 0.004 * size) for size in SIZES]) if infers else np.empty((0, 0))
    infer_w = np.stack([watts(8.0 + 0.1 * size) for size in SIZES]) if infers else np.empty((0, 0))
    train_s, train_w = (seconds(0.04), watts(10.0)) if trains else (none, none)
    return JobPair(modes(), sizes, train_s, train_w, infer_s, infer_w, "+".join(["net"] * trains + ["served"] * infers))


def write_tables(folder: Path) -> tuple[Path, Path]:
    """The pair's tables as files of a board that no catalogue knows: training, inference."""
    both = pair()
    rows = {
        "train": [(16, both.train_s, both.train_w)],
        "infer": list(zip(SIZES, both.infer_s, both.infer_w, strict=True)),
    }
    paths = []
    for kind, tables in rows.items():
        path = folder / "my-board" / kind / f"{'net' if kind == 'train' else 'served'}.csv"
        path.parent.mkdir(parents=True)
        lines = [
            f"{c:g},{f * 1e3:g},{g * 1e6:.0f},{m * 1e6:.0f},{size},{t * 1e3},{w},measured"
            for size, times, power in tables
            for (c, f, g, m), t, w in zip(both.modes.knobs, times, power, strict=True)
        ]
        path.write_text("\n".join([",".join([*TABLE_COLUMNS, LABEL_COLUMN]), *lines]), encoding="utf-8")
        paths.append(path)
    return paths[0], paths[1]
