"""A study's row: the figures of one policy with one seed over all rounds, while learning, and afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedge.studies.fleet.round_comparison import RoundComparison
from fedge.telemetry.savings import share_of_saving

SETTLED_FROM = 10
"""Rounds before this one are counted as learning."""


@dataclass(frozen=True, slots=True, eq=False)
class FleetRun:
    """One run of a policy with a seed: its compared rounds, and the modes that boards had measured after each."""

    policy: str
    seed: int
    rounds: tuple[RoundComparison, ...]
    explored: tuple[float, ...]
    """Mean over the boards of the number of modes measured so far, after every round."""
    engine: str = "coordinator"
    """``coordinator``: every board by itself. ``columns``: boards of a kind share one posterior."""

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Figures of all rounds, then of those of learning (suffix ``_learning``) and those after (``_settled``)."""
        learning = [one for one in self.rounds if one.round < SETTLED_FROM]
        settled = [one for one in self.rounds if one.round >= SETTLED_FROM]
        return {
            "policy": self.policy,
            "seed": self.seed,
            "engine": self.engine,
            "rounds": len(self.rounds),
            **summarize_rounds(self.rounds),
            "modes_explored_mean": self.explored[-1],
            **{f"{name}_learning": value for name, value in summarize_rounds(learning).items()},
            **{f"{name}_settled": value for name, value in summarize_rounds(settled).items()},
        }


def summarize_rounds(rounds: Sequence[RoundComparison]) -> dict[str, float | None]:
    """Return means per round, sums of missed deadlines, and shares in percent.

    Returns:
        Figures by name. A figure is None without rounds or without an objective; gap and share of saving are None too
        if a round's limits cannot be kept, because the oracle then is no reference.
    """
    ways = ("chosen", "oracle", "every", "maxn", "maxn_low", "preset", "capped")
    found: dict[str, float | None] = {}
    for way in ways:
        spent = [getattr(one, way) for one in rounds]
        prefix = {"chosen": "", "capped": "preset_but_maxn_", "every": "oracle_all_rows_"}.get(way, f"{way}_")
        found[f"{prefix}round_s"] = _mean([one.round_s for one in spent])
        found[f"{prefix}energy_j"] = _mean([one.energy_j for one in spent])
    found["played_round_s"] = _mean([one.played_s for one in rounds])
    found["played_energy_j"] = _mean([one.played_j for one in rounds])
    beyond = sum(not one.limits_kept for one in rounds)
    own = [None if beyond else one.objective for one in rounds]
    found["objective_gap_pct"] = _gap_pct(own, [one.oracle_objective for one in rounds])
    found["objective_gap_all_rows_pct"] = _gap_pct(own, [one.every_objective for one in rounds])
    saved = _difference(found["maxn_energy_j"], found["energy_j"])
    oracle = _difference(found["maxn_energy_j"], found["oracle_energy_j"])
    most = _difference(found["maxn_energy_j"], _mean([one.at_length.energy_j for one in rounds]))
    found["saving_pct"] = _percent(saved, found["maxn_energy_j"])
    found["oracle_saving_pct"] = _percent(oracle, found["maxn_energy_j"])
    share = None if beyond else _share(saved, most, found["maxn_energy_j"])
    found["saving_share_pct"] = None if share is None else 100.0 * share
    found["limits_out_of_reach"] = beyond
    found["deadlines"] = sum(one.deadlines for one in rounds)
    found["deadlines_missed"] = sum(one.missed for one in rounds)
    found["deadlines_missed_played"] = sum(one.missed_played for one in rounds)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gap_pct(values: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """Return by how many percent one mean is above another."""
    own = [value for value in values if value is not None]
    their = [value for value in others if value is not None]
    return 100.0 * (sum(own) / sum(their) - 1.0) if own and sum(their) > 0 else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _share(saved: float | None, most: float | None, baseline: float | None) -> float | None:
    """Return a saving as a share of the largest, if that means something."""
    if saved is None or most is None or not baseline:
        return None
    return share_of_saving(saved / baseline, most / baseline).share


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else 100.0 * part / whole
