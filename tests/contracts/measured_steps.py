"""Made-up training steps of pruned networks, as a folder of tables: a law of our own, with noise and a full board."""

import json
from pathlib import Path

import numpy as np

from fedge.costs.memory.step_model import compute_memory_terms, compute_time_terms
from fedge.costs.memory.step_table import GEOMETRY_COLUMNS, LAYERS_SUFFIX

LEVELS = (0, 20, 30, 40, 50, 60, 70, 80, 90)
BATCHES = (2, 8, 16, 32, 64, 128)
FULL_MB = 6200.0
MEMORY = np.array([1350.0, 3.0, 1.4, 0.5, 5.0, 2.0])
TIME_MS = np.array([20.0, 0.3, 1e-9, 1e-9, 2e-6, 5e-6])


def layers_at(level: int, width: int, blocks: int) -> list[list[int]]:
    """A first convolution, then blocks of a dense 3 x 3, a depthwise 3 x 3 and a 1 x 1, ever smaller and wider."""
    kept = 1.0 - level / 100.0
    channels, side = max(1, round(width * kept)), 112
    layers = [[3, channels, 7, 3, 2, 1, 224]]
    for block in range(blocks):
        out = max(1, round(width * 2 ** (block / 2) * kept))
        layers += [[channels, out, 3, 1, 1, 1, side], [out, out, 3, 1, 2, out, side], [out, out, 1, 0, 1, 1, side // 2]]
        channels, side = out, side // 2
    return layers


def write_network(folder: Path, name: str, width: int, blocks: int, noise: float = 0.01, seed: int = 0) -> None:
    """``NAME.csv`` and ``NAME.layers.json`` in ``folder``; steps beyond 1.3 times the board's memory are empty."""
    rng = np.random.default_rng(seed)
    levels = {level: layers_at(level, width, blocks) for level in LEVELS}
    rows = ["network,pruned_pct,batch_size,step_ms,memory_mb"]
    for level, layers in levels.items():
        geometry, batch = np.array(layers, dtype=np.float64), np.array(BATCHES, dtype=np.float64)
        memory_mb = np.maximum(1600.0, compute_memory_terms(geometry, batch) @ MEMORY) * np.exp(
            noise * rng.standard_normal(6)
        )
        step_ms = compute_time_terms(geometry, batch) @ TIME_MS * np.exp(noise * rng.standard_normal(6))
        for b, mb, ms in zip(BATCHES, memory_mb, step_ms, strict=True):
            cells = f"{ms},{min(mb, FULL_MB)}" if mb < 1.3 * FULL_MB else ","
            rows.append(f"{name},{level},{b},{cells}")
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    data = {"columns": list(GEOMETRY_COLUMNS), "levels": {str(level): layers for level, layers in levels.items()}}
    (folder / f"{name}{LAYERS_SUFFIX}").write_text(json.dumps(data), encoding="utf-8")


def write_folder(folder: Path) -> Path:
    """Three networks, small and large, wide and deep."""
    for place, (name, width, blocks) in enumerate((("deep", 32, 5), ("small", 24, 3), ("wide", 64, 4))):
        write_network(folder, name, width, blocks, seed=place)
    return folder
