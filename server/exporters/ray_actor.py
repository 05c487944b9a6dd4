"""The class of a Ray actor, which shows one board, or all boards of a kind, as Ray metrics.

The class is sent to the cluster by value, because its machines have Ray but not fedge: only the standard library and
Ray may be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GAUGES: dict[str, tuple[str, str]] = {
    "power_w": ("fedge_power_watts", "A board's power: mean of its work in a round, or its newest sample since"),
    "round_s": ("fedge_round_seconds", "From the round's start to the board's end, on the fleet's clock"),
    "progress": ("fedge_progress_ratio", "Minibatches done of those asked for in the round"),
    "temperature_c": ("fedge_temperature_celsius", "A board's hottest sensor"),
}
"""Field -> name and description of the metric."""
ENERGY = ("fedge_energy_joules", "Work, radio and waiting of the rounds that the board took part in")
MODE = ("fedge_mode_info", "1, with the power mode that the board is in")
TAGS = ("run", "board", "device")
SUMMED_FIELDS = ("power_w",)
"""Fields that are summed over the boards of a kind if there are too many boards for one series each."""


GAUGE_REPEAT_S = 1.0
"""Seconds between repeats of a gauge: Ray exports a value in the next scrape and then forgets it."""


class RepeatedGauges:
    """Gauges that keep their values until they are set again; a thread repeats them.

    Args:
        gauges: Name and description of each gauge, by field.
    """

    def __init__(self, gauges: Mapping[str, tuple[str, str]], tags: tuple[str, ...]) -> None:
        import threading

        from ray.util.metrics import Gauge

        self._gauges = {field: Gauge(name, text, tag_keys=tags) for field, (name, text) in gauges.items()}
        self._held: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}
        threading.Thread(target=self._repeat, name="gauges", daemon=True).start()

    def set(self, field: str, value: float, tags: dict[str, str], key: str) -> None:
        """Set a gauge.

        The value replaces the one last set for this field and ``key``, whatever its tags were.
        """
        self._held[field, key] = value, tags
        self._gauges[field].set(value, tags)

    def _repeat(self) -> None:
        import time

        while True:
            time.sleep(GAUGE_REPEAT_S)
            for (field, _), (value, tags) in list(self._held.items()):
                self._gauges[field].set(value, tags)


class FedgeBoards:
    """Shows the latest figures of its boards as Ray metrics.

    Args:
        summed: True for one series per board kind instead of one per board.
    """

    def __init__(self, label: str, run: str, summed: bool = False) -> None:
        from ray.util.metrics import Counter

        self._label, self._run, self._summed = label, run, summed
        self._gauges, self._modes = RepeatedGauges(GAUGES, TAGS), RepeatedGauges({"mode": MODE}, (*TAGS, "mode"))
        self._energy = Counter(*ENERGY, tag_keys=TAGS)
        self._latest: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return self._label

    def show(self, figures: Sequence[Mapping[str, Any]]) -> None:
        """Update the metrics.

        Args:
            figures: Fields of ``BoardFigures`` by name; ``energy_j`` is the total since the start of the run. None
                keeps the last known value.
        """
        for shown in figures:
            before = self._latest.get(shown["board"], {})
            # A field without a new value keeps its last one.
            known = {key: value for key, value in shown.items() if value is not None}
            self._latest[shown["board"]] = before | known
            self._set(shown, before)

    def _set(self, shown: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        board = "" if self._summed else shown["board"]
        tags = {"run": self._run, "board": board, "device": shown["device"]}
        for field in SUMMED_FIELDS if self._summed else GAUGES:
            if shown[field] is not None:
                value = self._total(field) if self._summed else shown[field]
                self._gauges.set(field, value, tags, board)
        gained = shown["energy_j"] - before.get("energy_j", 0.0)
        if gained > 0:
            self._energy.inc(gained, tags)
        if shown["mode"] and not self._summed:
            self._modes.set("mode", 1.0, tags | {"mode": shown["mode"]}, board)

    def _total(self, field: str) -> float:
        return float(sum(latest.get(field, 0.0) for latest in self._latest.values()))
