"""Price or carbon of energy over time by zone, from a CSV file, and the cost of joules under it.

Symbols: line k of the file holds from t_k until t_(k+1), the last one without end, and gives a zone s_k per kWh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedge.devices.availability import Availability, OnInterval, TracedAvailability
from fedge.devices.tables.csv_sheet import CsvSheet, decode_text, float_or_nan, parse_sheet, read_bytes
from fedge.errors import BadInput, UnknownName, one_line, prefix_errors
from fedge.experiment import Experiment, list_boards
from fedge.types import Floats

J_PER_KWH = 3.6e6
START = "at_s"
_EXPECTED = f"a CSV file of {START} and a column per zone"


@dataclass(frozen=True, slots=True, eq=False)
class ZoneValues:
    """The lines of a file.

    Attributes:
        starts_s: t_k on the fleet's clock, ascending from 0, shape (n,).
        by_zone: s_k of each zone, at least 0, shape (n,).
    """

    starts_s: Floats
    by_zone: Mapping[str, Floats]

    @property
    def mean(self) -> float:
        """Mean over time and zones; the last line counts as long as the one before."""
        lengths_s = np.diff(self.starts_s) if len(self.starts_s) > 1 else np.ones(1)
        weights = np.append(lengths_s, lengths_s[-1])[: len(self.starts_s)]
        return float(np.mean([np.average(values, weights=weights) for values in self.by_zone.values()]))


@dataclass(frozen=True, slots=True, eq=False)
class EnergySignal:
    """The signal of every board's zone over the fleet's clock."""

    zones: ZoneValues
    zone_of: Mapping[str, str]

    def compute_cost(self, board: str, joules: float, from_s: float, until_s: float) -> float:
        """Return the cost of joules that a board drew evenly in an interval, in the signal's unit."""
        return joules / J_PER_KWH * self._average(board, from_s, until_s)

    def find_price(self, board: str, at_s: float) -> float:
        """Return the value of a board's zone at a time, relative to the signal's mean."""
        return self._average(board, at_s, at_s) / self.zones.mean

    def least_price(self, board: str) -> float:
        """Return the least value of a board's zone, relative to the signal's mean."""
        return float(self.zones.by_zone[self.zone_of[board]].min()) / self.zones.mean

    def find_low_times(self, board: str, threshold: float) -> list[OnInterval]:
        """Return when the value of a board's zone is at most ``threshold`` times the signal's mean."""
        low = self.zones.by_zone[self.zone_of[board]] <= threshold * self.zones.mean
        edges = np.flatnonzero(np.diff(np.concatenate([[False], low, [False]]).astype(int)))
        ends_s = np.append(self.zones.starts_s, np.inf)[edges]
        return [(float(on_s), float(off_s)) for on_s, off_s in ends_s.reshape(-1, 2)]

    def _average(self, board: str, from_s: float, until_s: float) -> float:
        starts_s, values = self.zones.starts_s, self.zones.by_zone[self.zone_of[board]]
        first = np.searchsorted(starts_s, from_s, side="right") - 1
        last = max(first, np.searchsorted(starts_s, until_s, side="left") - 1)
        if first == last:
            return float(values[first])
        edges_s = np.concatenate([[from_s], starts_s[first + 1 : last + 1], [until_s]])
        return float(np.average(values[first : last + 1], weights=np.diff(edges_s)))


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Energy in joules, and its cost in the signal's unit; None without a signal."""

    joules: float = 0.0
    cost: float | None = None

    def __add__(self, other: EnergyUse) -> EnergyUse:
        costs = [one.cost for one in (self, other) if one.cost is not None]
        return EnergyUse(self.joules + other.joules, sum(costs) if costs else None)


NO_ENERGY = EnergyUse()


def book_energy(
    signal: EnergySignal | None, joules: Mapping[str, float], from_s: Mapping[str, float] | float, until_s: float
) -> EnergyUse:
    """Return the energy of boards in an interval of the fleet's clock, which may begin at a time of each board."""
    total = sum(joules.values(), 0.0)
    if signal is None:
        return EnergyUse(total)
    begins = from_s if isinstance(from_s, Mapping) else dict.fromkeys(joules, from_s)
    return EnergyUse(total, sum(signal.compute_cost(name, j, begins[name], until_s) for name, j in joules.items()))


class LowSignalStart:
    """Availability of a board that begins work only while its zone's signal is low, and may end it later."""

    def __init__(self, presence: Availability, low_times: Sequence[OnInterval]) -> None:
        self._presence, self._low = presence, TracedAvailability(low_times)

    def available_until_s(self, at_s: float) -> float:
        return self._presence.available_until_s(at_s)

    def next_available_s(self, at_s: float) -> float | None:
        while (present_s := self._presence.next_available_s(at_s)) is not None:
            low_s = self._low.next_available_s(present_s)
            if low_s is None or low_s == present_s:
                return low_s
            at_s = low_s
        return None


def build_signal(experiment: Experiment) -> EnergySignal | None:
    """Build the signal of an experiment; None if it has none.

    Raises:
        BadInput: The file is invalid, or a board's zone is missing in it or unclear.
    """
    if experiment.signal is None:
        for i, entry in enumerate(experiment.fleet):
            if entry.zone is not None:
                right = "no zone, or a signal: the file with the values of its zone"
                raise BadInput(f"fleet[{i}].zone", repr(entry.zone), right)
        return None
    with prefix_errors("signal.trace"):
        zones, zone_of = read_signal(Path(experiment.signal.trace)), list[str]()
    for i, entry in enumerate(experiment.fleet):
        zone_of += [_find_zone(entry.zone, tuple(zones.by_zone), f"fleet[{i}].zone")] * entry.count
    return EnergySignal(zones, {b.name: zone for b, zone in zip(list_boards(experiment), zone_of, strict=True)})


def _find_zone(zone: str | None, known: tuple[str, ...], where: str) -> str:
    """Return the column of a fleet entry's zone; names are compared without case, as those of columns are."""
    if zone is None:
        if len(known) > 1:
            raise BadInput(where, "nothing", f"a zone of the signal: {', '.join(known)}")
        return known[0]
    if zone.casefold() not in known:
        raise UnknownName(where, zone, known)
    return zone.casefold()


@lru_cache(maxsize=16)
def read_signal(path: Path) -> ZoneValues:
    """Read a signal, a CSV file with the column ``at_s`` and one per zone; each file is read once per process.

    Lines may be in any order; the first must hold from 0 s.

    Raises:
        BadInput: The file is missing, lacks a column, or has an invalid line; names file and line.
    """
    text = decode_text(str(path), read_bytes(path, _EXPECTED), f"{_EXPECTED}, in UTF-8")
    sheet = parse_sheet(str(path), text, [START])
    names = [name for name in sheet.columns if name not in {START, ""}]
    if not names:
        raise BadInput(str(path), f"no column beside {START}", "a column per zone, such as north")
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(str(path), f"two columns {twice[0]}", "every zone once")
    if not sheet.rows:
        raise BadInput(str(path), "no line below the header", f"at least one, from {START} 0")
    table = np.array(sorted(_parse_lines(sheet, (START, *names))))
    starts_s, values = table[:, 0], table[:, 1:]
    if (same := np.flatnonzero(np.diff(starts_s) == 0.0)).size:
        raise BadInput(str(path), f"two lines of {START} {starts_s[same[0]]:g}", "every time once")
    if starts_s[0] != 0.0:
        raise BadInput(str(path), f"the first line at {starts_s[0]:g} s", f"one of {START} 0, the run's start")
    if not values.any():
        raise BadInput(str(path), "only zeros", "a value above 0: prices are relative to the mean")
    return ZoneValues(starts_s, dict(zip(names, values.T, strict=True)))


def _parse_lines(sheet: CsvSheet, names: Sequence[str]) -> list[tuple[float, ...]]:
    """Return the lines' numbers, finite and at least 0; raise ``BadInput`` for the first other cell."""
    lines = []
    for row in sheet.rows:
        numbers = tuple(float_or_nan(row.cells[name]) for name in names)
        for name, value in zip(names, numbers, strict=True):
            if not (math.isfinite(value) and value >= 0.0):
                where = f"{sheet.where}: line {row.line}, {name}"
                raise BadInput(where, one_line(repr(row.cells[name]), 40), "a number of at least 0")
        lines.append(numbers)
    return lines
