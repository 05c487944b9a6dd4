"""All results of a sweep, computed once for page and JSON: statistics, findings, advice, effects and variability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.report.characterisation.setting_summary import SettingSummary, summarise_settings
from experiments.report.chart import to_json_value
from fedge.characterisation.findings import SweepFinding
from fedge.characterisation.knob_effects import KnobEffect
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.reliability import Variability
from fedge.characterisation.sweep_store import FinishedPoint, SweepResult
from fedge.characterisation.tuning_advice import TuningAdvice


@dataclass(frozen=True, slots=True, eq=False)
class CharacterisationSummary:
    """A sweep with all results; ``stats`` are in the order of ``result.points``."""

    result: SweepResult
    stats: tuple[PointStats, ...]
    settings: tuple[SettingSummary, ...]
    findings: tuple[SweepFinding, ...]
    advice: tuple[TuningAdvice, ...]
    effects: tuple[KnobEffect, ...]
    effects_from_first: tuple[KnobEffect, ...]
    """Effects of ordered knobs, from the first value to later ones."""
    variability: tuple[Variability, ...]

    @property
    def finished_by_key(self) -> Mapping[str, FinishedPoint]:
        """Finished points by key."""
        return {one.point.key: one for one in self.result.points}

    @property
    def has_power(self) -> bool:
        """Whether the power of any point was metered."""
        return any(one.energy_j is not None for one in self.stats)


def summarise_result(result: SweepResult) -> CharacterisationSummary:
    """Compute all results of a sweep, reading every point's minibatches once.

    Raises:
        BadInput: A point's file is missing or damaged.
    """
    from fedge.characterisation.knob_effects import compute_effects_from_first, compute_pooled_effects
    from fedge.characterisation.point_statistics import compute_point_stats, pool_repeats
    from fedge.characterisation.reliability import add_repeat_notes, compute_variability
    from fedge.characterisation.sweep_findings import compute_pooled_findings
    from fedge.characterisation.tuning_advice import compute_pooled_advice

    stats = add_repeat_notes([compute_point_stats(one, result.plan.course) for one in result.points])
    points = pool_repeats(stats)
    effects, firsts = compute_pooled_effects(points), compute_effects_from_first(points)
    return CharacterisationSummary(
        result=result,
        stats=stats,
        settings=summarise_settings(stats, result.plan.base, points),
        findings=compute_pooled_findings(stats, points, effects, firsts),
        advice=compute_pooled_advice(points, result.plan),
        effects=effects,
        effects_from_first=firsts,
        variability=compute_variability(stats),
    )


def summary_to_json(summary: CharacterisationSummary) -> dict[str, Any]:
    """Convert the results to JSON-compatible data; numbers that are not finite become null."""
    result = summary.result
    counts = {
        "finished": len(result.points),
        "skipped": len(result.skipped),
        "failed": len(result.failed),
        "planned": len(result.plan.points),
    }
    data: dict[str, Any] = to_json_value(
        {
            "plan": result.plan.name,
            "points": counts,
            "findings": [asdict(one) for one in summary.findings],
            "advice": [_advice_to_json(one) for one in summary.advice],
            "effects": [_effect_to_json(one) for one in summary.effects],
            "effects_from_first": [_effect_to_json(one) for one in summary.effects_from_first],
            "variability": [_to_record(one, values=list(one.values)) for one in summary.variability],
            "labels": _labels_to_json(summary),
        }
    )
    return data


def _advice_to_json(one: TuningAdvice) -> dict[str, Any]:
    expected = {"expected": one.expected.value, "expected_low": one.expected.low, "expected_high": one.expected.high}
    return {**_to_record(one, present=one.present, **expected), "saving": one.saving}


def _effect_to_json(one: KnobEffect) -> dict[str, Any]:
    rest = _to_record(one, before_value=one.before_value, after_value=one.after_value)
    ratio = rest.pop("ratio")
    return {**rest, "ratio": ratio["value"], "ratio_low": ratio["low"], "ratio_high": ratio["high"]}


def _to_record(one: TuningAdvice | KnobEffect | Variability, **figures: Any) -> dict[str, Any]:
    """Return a record's fields, with ``figures``, some of them, at the end, named with the unit of its quantity."""
    unit = one.quantity.rpartition("_")[2]
    rest = {name: value for name, value in asdict(one).items() if name not in figures}
    return {**rest, **{f"{name}_{unit}": value for name, value in figures.items()}}


def _labels_to_json(summary: CharacterisationSummary) -> list[dict[str, Any]]:
    """Return the labels of time and power with their source and number of points."""
    counts = Counter((one.label, one.power_label, one.source) for one in summary.result.points)
    return [
        {"time": time, "power": power, "source": source, "points": count}
        for (time, power, source), count in counts.items()
    ]
