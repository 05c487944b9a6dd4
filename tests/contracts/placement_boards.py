"""Small made-up boards and networks for placement: every number drawn, nothing of a real board."""

import numpy as np

from fedge.analysis.placement.accelerators import Accelerator, GpuFallback, PlacementBoard, PrecisionSpeed
from fedge.costs.layers.network_cost import LayerCost, NetworkCost


def layer(kind: str, flop: float, moved: float, weights: float = 0.0) -> LayerCost:
    return LayerCost(kind, kind, flop, moved / 2, moved / 2, weights)


def resnet50() -> NetworkCost:
    """ResNet-50's printed constants over 174 operators: 8.2063 GFLOP, 102.01 MB of weights, 234.66 MB per image."""
    layers = [layer("conv", 8.2063e9, 234.66e6, 102.01e6), *(layer("relu", 0.0, 0.0) for _ in range(173))]
    return NetworkCost("resnet50", (3, 224, 224), tuple(layers), "printed constants")


def made_up_network(rng: np.random.Generator) -> NetworkCost:
    """A few operators, of which a DLA does not run all."""
    kinds = rng.choice(["conv", "relu", "gelu", "linear"], size=int(rng.integers(1, 5)))
    layers = tuple(
        layer(str(kind), 1e9 * rng.uniform(0.01, 5), 1e6 * rng.uniform(0.1, 100), 1e6 * rng.uniform(0, 50))
        for kind in kinds
    )
    return NetworkCost("made-up", (3, 8, 8), layers, "drawn")


def made_up_board(rng: np.random.Generator) -> PlacementBoard:
    """One to four accelerators on one to three engines; two DLA may be alike."""
    gpu = [_accelerator(rng, name, "gpu", None) for name in ("cuda-cores", "tensor-cores")[: int(rng.integers(1, 3))]]
    kinds = frozenset({"conv", "relu"})
    dlas = [_accelerator(rng, f"dla-{i}", f"dla-{i}", kinds) for i in range(int(rng.integers(0, 3)))]
    if len(dlas) == 2 and rng.random() < 0.5:
        first = dlas[0]
        dlas[1] = Accelerator(
            "dla-1", "dla-1", first.speeds, first.bandwidth_share, first.spill_batch, first.hindrance, first.full_w,
            first.waiting_w, first.supported,
        )  # fmt: skip
    return PlacementBoard(
        name="made-up",
        accelerators=(*gpu, *dlas),
        bandwidth=1e9 * rng.uniform(5, 200),
        corner=float(rng.choice([1.0, 2.0, 3.0, 5.0])),
        overlap=float(rng.uniform(0, 1)),
        idle_w=float(rng.uniform(0.5, 12)),
        memory_j=1e-12 * rng.uniform(0, 100),
        fallback=GpuFallback("gpu", _speed(rng, "fp16"), 1e-4, float(rng.uniform(0, 40))),
    )


def _accelerator(rng: np.random.Generator, name: str, engine: str, supported: frozenset[str] | None) -> Accelerator:
    speeds = tuple(_speed(rng, precision) for precision in ("fp32", "fp16")[: int(rng.integers(1, 3))])
    return Accelerator(
        name=name,
        engine=engine,
        speeds=speeds,
        bandwidth_share=float(rng.uniform(0.1, 1)),
        spill_batch=float(rng.choice([4.0, 50.0, np.inf])),
        hindrance=float(rng.choice([1.0, 1.0, 0.4])) if supported is None else 1.0,
        full_w=float(rng.uniform(0, 40)),
        waiting_w=float(rng.uniform(0, 10)),
        supported=supported,
    )


def _speed(rng: np.random.Generator, precision: str) -> PrecisionSpeed:
    return PrecisionSpeed(
        precision,
        1e12 * 10 ** rng.uniform(-2, 1),
        float(rng.choice([0.25, 0.5, 1.0])),
        1e-4 * rng.uniform(0, 2),
        1e-3 * rng.uniform(0, 2),
    )
