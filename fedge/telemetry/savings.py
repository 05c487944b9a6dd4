"""Savings of energy against a baseline, and their share of the oracle's saving where such a share means something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedge.telemetry.store_records import RoundRow

Baseline = Literal["maxn", "maxn_parked"]
MAXN_POLICY = "maxn"
MIN_ORACLE_SAVING = 0.02
"""Least saving of the oracle, as a share of the baseline's energy, of which a share is given. The baselines have no
noise and no warm-up, which runs have: a run at MAXN of two rounds is 1 % above its own baseline.
"""
MAX_SHARE = 1.1
"""Largest share that is given: the oracle works in one mode per board and round, so two modes and noise can save a
little more than it, but not much.
"""


@dataclass(frozen=True, slots=True)
class SavingShare:
    """A saving as a share of the oracle's.

    Attributes:
        share: The share; None if unknown or meaningless.
        why: Why there is none; empty if there is one or if a saving is unknown.
    """

    share: float | None
    why: str = ""


def select_comparable(rounds: Iterable[RoundRow]) -> tuple[RoundRow, ...]:
    """Return the rows comparable with MAXN: every client finished its work in time, and the truth is known."""
    return tuple(row for row in rounds if row.maxn_energy_j is not None and not row.late)


def compute_saving(
    rounds: Sequence[RoundRow], policy: str, baseline: Baseline, spent: Literal["energy_j", "oracle_energy_j"]
) -> float | None:
    """Return the share of a baseline's energy that was saved over comparable rounds.

    Args:
        rounds: The rows of ``select_comparable``.
        policy: The run's policy: at MAXN a run is its own baseline.
        baseline: Work at MAXN, and waiting there or in the lowest mode (``maxn_parked``).
        spent: The run's own energy, or the oracle's.

    Returns:
        The share; None without rounds, if an energy is unknown, or for a run that is the baseline itself.
    """
    if policy == baseline == MAXN_POLICY and spent == "energy_j":
        return None
    spent_j = sum_known([getattr(row, spent) for row in rounds])
    baseline_j = sum_known([getattr(row, f"{baseline}_energy_j") for row in rounds])
    return None if spent_j is None or not baseline_j else 1.0 - spent_j / baseline_j


def share_of_saving(saving: float | None, oracle: float | None, policy: str = "") -> SavingShare:
    """Return a saving as a share of the oracle's; both are shares of the same baseline's energy."""
    if policy == MAXN_POLICY:
        return SavingShare(None, "the run itself is at MAXN")
    if saving is None or oracle is None:
        return SavingShare(None)
    if oracle < MIN_ORACLE_SAVING:
        return SavingShare(None, f"the oracle saves less than {MIN_ORACLE_SAVING:.0%}".replace("%", " %"))
    if saving <= 0:
        return SavingShare(None, "nothing was saved")
    if saving > MAX_SHARE * oracle:
        return SavingShare(None, "the run saved more than the oracle")
    return SavingShare(saving / oracle)


def sum_known(values: Sequence[float | None]) -> float | None:
    """Return the sum, or None if a value is not known or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None
