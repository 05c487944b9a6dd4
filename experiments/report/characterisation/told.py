"""Everything that the page tells, worked out once: the sweep's figures, findings, advice, effects and variability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.report.characterisation.settings import Setting, settings_of
from fedge.characterisation.advice.whatif import Advice
from fedge.characterisation.findings import Finding
from fedge.characterisation.judging.effects import Effect
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.judging.variability import Variability
from fedge.characterisation.result import Finished, Result


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """A sweep with all that was made of it; ``stats`` are in the order of ``result.points``."""

    result: Result
    stats: tuple[PointStats, ...]
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]
    effects: tuple[Effect, ...]
    firsts: tuple[Effect, ...]
    """Of knobs with an order, from the first value to later ones."""
    variability: tuple[Variability, ...]

    @property
    def finished(self) -> Mapping[str, Finished]:
        """By key."""
        return {one.point.key: one for one in self.result.points}

    @property
    def metered(self) -> bool:
        """Whether anybody metered the power of any point."""
        return any(one.energy_j is not None for one in self.stats)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of time and of power, each once."""
        given = (label for one in self.result.points for label in (one.label, one.power_label) if label)
        return tuple(dict.fromkeys(given))


def told_of(result: Result) -> Told:
    """Work it out; reads every point's minibatches once."""
    from fedge.characterisation.advice.whatif import advice_among
    from fedge.characterisation.findings import findings_among
    from fedge.characterisation.judging.effects import effects_among, effects_from_first
    from fedge.characterisation.judging.pooling import pooled
    from fedge.characterisation.judging.repeats import noted
    from fedge.characterisation.judging.statistics import stats_of
    from fedge.characterisation.judging.variability import variability

    stats = noted([stats_of(one, result.plan.course) for one in result.points])
    points = pooled(stats)
    effects, firsts = effects_among(points), effects_from_first(points)
    return Told(
        result=result,
        stats=stats,
        settings=settings_of(stats, result.plan.base, points),
        findings=findings_among(stats, points, effects, firsts),
        advice=advice_among(points, result.plan),
        effects=effects,
        firsts=firsts,
        variability=variability(stats),
    )
