"""Which points are looked at in detail: a few that say most, of all that a sweep has, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.report.characterisation.settings import Setting

MOST_RESTLESS = 2
"""Points that did not settle, of those that are chosen; chosen by us."""


def chosen(settings: Sequence[Setting], most: int) -> list[tuple[Setting, str]]:
    """All of them where there are few; else what is typical, the extremes, and then evenly spaced ones.

    Each with why it is here, in a word or two; empty where it is one of many.
    """
    found: dict[str, tuple[Setting, str]] = {}
    for one, why in _worth_seeing(settings):
        found.setdefault(one.key, (one, why))
    step = max(1, len(settings) // most)
    for one in [*settings[::step], *settings]:
        found.setdefault(one.key, (one, ""))
    return list(found.values())[:most]


def _worth_seeing(settings: Sequence[Setting]) -> Iterator[tuple[Setting, str]]:
    if not settings:
        return
    yield min(settings, key=lambda one: one.away), "typical"
    stalled = [one for one in settings if (one.value("e2e_s") or 0.0) > 0]
    if len(stalled) > 1:
        yield max(stalled, key=lambda one: (one.value("stall_s") or 0.0) / (one.value("e2e_s") or 1.0)), "most stall"
        yield min(stalled, key=lambda one: (one.value("stall_s") or 0.0) / (one.value("e2e_s") or 1.0)), "least stall"
        yield max(stalled, key=lambda one: one.value("e2e_s") or 0.0), "longest epoch"
        yield min(stalled, key=lambda one: one.value("e2e_s") or 0.0), "shortest epoch"
        yield max(stalled, key=lambda one: max(each.outliers for each in one.repeats)), "most outliers"
    restless = [one for one in settings if not all(each.settled for each in one.repeats)]
    yield from ((one, "not settled") for one in restless[:MOST_RESTLESS])
