"""What the page says, as plain JSON: findings, advice, effects, variability, labels; units are in the names."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from experiments.report.characterisation.told import Told
from fedge.characterisation.advice.whatif import Advice
from fedge.characterisation.judging.effects import Effect
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.variability import Variability


def as_data(told: Told) -> dict[str, Any]:
    """Everything that is not finite is null."""
    result = told.result
    data = {
            "plan": result.plan.name,
            "points": {
                "finished": len(result.points), "skipped": len(result.skipped), "failed": len(result.failed),
                "planned": len(result.plan.points),
            },
            "findings": [asdict(one) for one in told.findings],
            "advice": [_advice(one) for one in told.advice],
            "effects": [_effect(one) for one in told.effects],
            "effects_from_first": [_effect(one) for one in told.firsts],
            "variability": [_variability(one) for one in told.variability],
            "labels": _labels(told),
        }  # fmt: skip
    return {name: finite(value) for name, value in data.items()}


def _advice(one: Advice) -> dict[str, Any]:
    unit = _unit(one.quantity)
    said = asdict(one)
    expected = _interval(one.expected, "expected", unit)
    return {**_without(said, "present", "expected"), f"present_{unit}": one.present, **expected, "saving": one.saving}


def _effect(one: Effect) -> dict[str, Any]:
    unit = _unit(one.quantity)
    rest = _without(asdict(one), "before_value", "after_value", "ratio")
    values = {f"before_value_{unit}": one.before_value, f"after_value_{unit}": one.after_value}
    return {**rest, **values, "ratio": one.ratio.value, "ratio_low": one.ratio.low, "ratio_high": one.ratio.high}


def _variability(one: Variability) -> dict[str, Any]:
    return {**_without(asdict(one), "values"), f"values_{_unit(one.quantity)}": list(one.values)}


def _interval(amount: Estimate, name: str, unit: str) -> dict[str, float]:
    return {f"{name}_{unit}": amount.value, f"{name}_low_{unit}": amount.low, f"{name}_high_{unit}": amount.high}


def _unit(quantity: str) -> str:
    """``s`` of ``e2e_s``."""
    return quantity.rpartition("_")[2]


def _without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


def _labels(told: Told) -> list[dict[str, Any]]:
    """Each label of time and power with its source, and of how many points."""
    counts: dict[tuple[str, str | None, str], int] = {}
    for one in told.result.points:
        key = (one.label, one.power_label, one.source)
        counts[key] = counts.get(key, 0) + 1
    return [
        {"time": time, "power": power, "source": source, "points": count}
        for (time, power, source), count in counts.items()
    ]


def finite(value: Any) -> Any:
    """JSON-able: tuples as lists, what is not finite as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
