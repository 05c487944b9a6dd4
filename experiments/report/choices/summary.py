"""The figures of a study's runs over their seeds: one run of one board, columns, the mean and the worst seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.quantities import UNKNOWN

if TYPE_CHECKING:
    from fedge.studies.mode_choice import ModeChoice

Figures = Mapping[str, str | int | float | None]
"""A row of JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One run of one board: under which policy, deadline ratio and seed, and its rounds."""

    policy: str
    ratio: float
    seed: int
    played: ModeChoice

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """The run's figures, as JSON has them; none from round 10 on where there is no such round."""
        from fedge.studies.mode_choice import LEARNT

        settled = any(one.round >= LEARNT for one in self.played.rounds)
        return {
            "policy": self.policy,
            "ratio": self.ratio,
            "seed": self.seed,
            "regret_pct": self.played.regret_pct,
            "regret_after10_pct": self.played.regret_after10_pct if settled else None,
            "energy_saved_pct": self.played.energy_saved_pct,
            "deadlines_missed": self.played.deadlines_missed,
            "modes_explored": self.played.modes_explored,
        }


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table; ``worst`` picks the worst seed's, where that is worth showing."""

    heading: str
    field: str
    digits: int = 2
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    """From the field's unit to the heading's."""
    whole: bool = False
    """Whether one seed's figure is a whole number: then the worst is shown without digits."""
    of: str = ""
    """The field that says of how many, where that is worth showing; a dash where it is of none."""

    def text(self, rows: Sequence[Figures]) -> str:
        """The mean, and the worst in brackets; a dash where no seed has the figure."""
        values = [self.factor * float(value) for row in rows if (value := row.get(self.field)) is not None]
        if not values:
            return UNKNOWN
        digits = 0 if self.of and len(values) == 1 else self.digits
        mean = _figure(sum(values) / len(values), digits)
        if self.of:
            most = sum(float(row.get(self.of) or 0) for row in rows) / len(rows)
            return f"{mean} of {_figure(most, 0)}" if most else UNKNOWN
        if self.worst is None or len(values) == 1:
            return mean
        return f"{mean} ({_figure(self.worst(values), 0 if self.whole else self.digits)})"


def _figure(value: float, digits: int) -> str:
    """The figure; from 100 on with one digit at most, so that columns stay narrow."""
    return f"{value:,.{min(digits, 1) if abs(value) >= 100.0 else digits}f}"


MODE_CHOICE = (
    Column("regret\n%", "regret_pct"),
    Column("from round\n10 on %", "regret_after10_pct"),
    Column("saved of\nMAXN's %", "energy_saved_pct", 1, min),
    Column("deadlines\nmissed", "deadlines_missed", 1, whole=True),
    Column("modes\ntried", "modes_explored", 1, whole=True),
)
FLEET = (
    Column("round\ns", "round_s", 1, None),
    Column("energy\nkJ", "energy_j", 2, None, 1e-3),
    Column("gap to the\noracle %", "objective_gap_pct"),
    Column("gap, from\nround 10 %", "objective_gap_pct_settled"),
    Column("deadlines\nmissed", "deadlines_missed", 1, None, of="deadlines"),
    Column("modes\ntried", "modes_explored_mean", 1, None),
)
SAVINGS = (
    Column("saved against\nMAXN %", "saving_pct", 1, min),
    Column("oracle\nsaves %", "oracle_saving_pct", 1, None),
    Column("share of the\noracle's %", "saving_share_pct", 1, min),
    Column("share, from\nround 10 %", "saving_share_pct_settled", 1, min),
)
BASELINES = (
    Column("round\ns", "round_s", 1, None),
    Column("energy\nkJ", "energy_j", 2, None, 1e-3),
)
WAYS = {
    "oracle_": "oracle: the same plan from the truth",
    "oracle_all_rows_": "oracle that may take implausible modes",
    "maxn_": "MAXN",
    "maxn_low_": "MAXN, waiting low",
    "preset_": "each board's best preset within the limit",
    "preset_but_maxn_": "each board's best preset but MAXN",
}
"""A baseline's prefix in the rows -> what it is called."""


def baseline(rows: Sequence[Figures], prefix: str) -> list[Figures]:
    """The round and energy of a baseline, under the plain names."""
    return [{name: row[prefix + name] for name in ("round_s", "energy_j")} for row in rows]


def out_of_reach(rows: Sequence[Figures]) -> list[str]:
    """A sentence per policy whose limits not even the oracle can keep."""
    told = []
    for (policy,), group in grouped(rows, "policy").items():
        beyond, played = (sum(int(row.get(key) or 0) for row in group) for key in ("limits_out_of_reach", "rounds"))
        if beyond:
            rounds = f"{beyond} of {played} round{'s' * (played > 1)}"
            told.append(f"{policy}: in {rounds} even the oracle cannot keep the limits; no gap and no share are told.")
    return told


def grouped(rows: Sequence[Figures], *keys: str) -> dict[tuple[object, ...], list[Figures]]:
    """The rows of all seeds together, in the order of the rows."""
    found: dict[tuple[object, ...], list[Figures]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found
