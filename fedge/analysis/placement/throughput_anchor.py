"""Solve for CUDA cores' speed and spill batch from one known point: the best throughput and its batch size."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_SPILL, LARGEST_SPILL = 1.0, 1e6
_BISECTION_STEPS = 200


@dataclass(frozen=True, slots=True)
class ThroughputAnchor:
    """The best throughput of an accelerator alone.

    Attributes:
        images_per_s: The throughput.
        batch_size: The batch size that reaches it.
        flop: FLOP per image.
        weight_bytes: Bytes of weights per batch.
        activation_bytes: Bytes of activations per image.
        fixed_s: Seconds of launches per batch.
        bandwidth: Usable bandwidth in bytes per second.
        corner: The board's corner exponent.
    """

    images_per_s: float
    batch_size: float
    flop: float
    weight_bytes: float
    activation_bytes: float
    fixed_s: float
    bandwidth: float
    corner: float


@dataclass(frozen=True, slots=True)
class AnchorSolution:
    """Attained FLOP per second, and the batch size at which activations are moved twice."""

    flop_per_s: float
    spill_batch: float


def solve_anchor(anchor: ThroughputAnchor) -> AnchorSolution:
    """Return the speed and spill batch for which the anchor is the maximum over the batch size.

    With Z = compute^n + memory^n the time beyond launches, throughput is largest where the saving of launches by a
    larger batch, fixed / b^2 per image, equals its cost by spilling.

    Raises:
        ValueError: If no speed reaches the anchor.
    """
    low, high = SMALLEST_SPILL, LARGEST_SPILL
    for _ in range(_BISECTION_STEPS):
        middle = (low * high) ** 0.5
        if _is_rising(anchor, middle):
            high = middle
        else:
            low = middle
    compute_s = _compute_s(anchor, high)
    if compute_s is None:
        raise ValueError(f"no speed reaches {anchor.images_per_s} images/s with this bandwidth")
    return AnchorSolution(anchor.flop * anchor.batch_size / compute_s, high)


def _memory_s(anchor: ThroughputAnchor, spill: float, batch: float) -> float:
    return (anchor.weight_bytes + batch * anchor.activation_bytes * (1 + batch / spill)) / anchor.bandwidth


def _compute_s(anchor: ThroughputAnchor, spill: float) -> float | None:
    """Return the compute seconds of a batch at the anchor's throughput, or None if its bytes alone take longer."""
    left_s = anchor.batch_size / anchor.images_per_s - anchor.fixed_s
    rest = left_s**anchor.corner - _memory_s(anchor, spill, anchor.batch_size) ** anchor.corner
    return float(rest ** (1 / anchor.corner)) if left_s > 0 and rest > 0 else None


def _is_rising(anchor: ThroughputAnchor, spill: float) -> bool:
    """Return whether throughput still rises with the batch size at the anchor: fixed + w (weights and spill) > 0."""
    compute_s = _compute_s(anchor, spill)
    if compute_s is None:
        return False
    b, n = anchor.batch_size, anchor.corner
    memory_s = _memory_s(anchor, spill, b)
    roof_s = (compute_s**n + memory_s**n) ** (1 / n)
    # d(T/b)/db * b^2 = b dT/db - T, with compute proportional to b.
    memory_slope_s = b * anchor.activation_bytes * (1 + 2 * b / spill) / anchor.bandwidth
    slope_s = (compute_s**n + memory_s ** (n - 1) * memory_slope_s) * roof_s ** (1 - n)
    return bool(slope_s < anchor.fixed_s + roof_s)
