"""The top of the page: what was characterised, how far it is, and whether its figures are measured."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from experiments.report.cards import Card, cards
from experiments.report.cells import badge
from experiments.report.characterisation.names import KINDS
from experiments.report.characterisation.told import Told
from experiments.report.quantities import duration, energy, number, percent

MEANS = {
    "measured": "timed on the machine itself",
    "calibrated": "of a model that was fitted to measurements; nothing here was timed on a board",
    "estimated": "of a model with figures from data sheets or chosen by us; nothing here was timed on a board",
}
MOST_SOURCES = 3


def head(told: Told) -> str:
    """Title, facts, cards, and each label with what stands behind it."""
    plan = told.result.plan
    kinds = tuple(dict.fromkeys(KINDS[one.kind] for one in plan.points))
    facts = (
        _several("board", plan.boards),
        _several("workload", tuple(plan.workloads)),
        *((" and ".join(kinds),) if kinds else ()),
        _course(told),
    )
    return (
        f"<h1>{escape(plan.name)}: where time and energy go</h1>"
        f"<p class='soft'>{' · '.join(escape(one) for one in facts)}</p>{cards(_cards(told))}{_labels(told)}"
    )


def _several(word: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{word}{'s' * (len(names) != 1)} {shown}"


def _course(told: Told) -> str:
    course = told.result.plan.course
    epochs = f"{course.epochs} epoch{'s' * (course.epochs != 1)} per point"
    cut = f" of {course.minibatches} minibatches at most" if course.minibatches is not None else ""
    repeats = f", {course.repeats} repeats" if course.repeats > 1 else ""
    return f"{epochs}{cut}{repeats}"


def _cards(told: Told) -> list[Card]:
    result, planned = told.result, len(told.result.plan.points)
    aside = [f"{len(some)} {word}" for word, some in (("skipped", result.skipped), ("failed", result.failed)) if some]
    left = planned - len(result.points) - len(result.skipped) - len(result.failed)
    aside += [f"{left} to come"] if left > 0 else []
    shown: list[Card] = [
        ("Points", f"{len(result.points):,} of {planned:,}", ", ".join(aside) or "all that the plan has"),
    ]
    if told.stats:
        shown += _extremes(told)
    return shown


def _extremes(told: Told) -> list[Card]:
    stalls = [one.stall_s.value / one.e2e_s.value for one in told.stats if one.e2e_s.value > 0]
    epochs = [one.e2e_s.value for one in told.stats]
    joules = [one.energy_j.value for one in told.stats if one.energy_j is not None]
    restless = sum(not one.settled for one in told.stats)
    alone = len(epochs) == 1
    shown: list[Card] = [
        ("Stall", _span([percent(one, 0) for one in (min(stalls), max(stalls))]) if stalls else "–", "of an epoch"),
        ("Epoch", _span([_brief(one) for one in (min(epochs), max(epochs))]), _between(alone=alone)),
    ]
    if joules:
        shown.append(("Energy", _span([energy(one) for one in (min(joules), max(joules))]), "of an epoch"))
    else:
        shown.append(("Energy", "not metered", "nobody metered power"))
    shown.append(("Settled", f"{len(epochs) - restless:,} of {len(epochs):,}", "points whose minibatches are steady"))
    spent = sum(one.seconds for one in told.result.points)
    shown.append(("Board's time", duration(spent), "that measuring took"))
    return shown


def _between(*, alone: bool) -> str:
    return "end to end" if alone else "end to end, shortest to longest"


def _span(words: Sequence[str]) -> str:
    return words[0] if words[0] == words[-1] else f"{words[0]} – {words[-1]}"


def _brief(seconds: float) -> str:
    """In one unit, so that two of them fit a card."""
    if seconds < 120:
        return number(seconds, 3, "s")
    return number(seconds / 60, 3, "min") if seconds < 7200 else number(seconds / 3600, 3, "h")


def _labels(told: Told) -> str:
    """One line per label and source, for time and for power; one for both where they are the same."""
    time, power = (_given(told, field) for field in ("label", "power_label"))
    lines = []
    for label in dict.fromkeys([*time, *power]):
        if time.get(label) == power.get(label):
            lines.append(_line("Time and power are", label, time[label]))
            continue
        lines += [
            _line(f"{what} is", label, given[label])
            for what, given in (("Time", time), ("Power", power))
            if label in given
        ]
    if told.stats and not told.metered:
        lines.append("<p>Nobody metered power: there are no joules on this page.</p>")
    return "".join(lines)


def _given(told: Told, field: str) -> dict[str, list[str]]:
    """The sources of every label, each once."""
    found: dict[str, list[str]] = {}
    for one in told.result.points:
        label = getattr(one, field)
        if label and one.source not in found.setdefault(label, []):
            found[label].append(one.source)
    return found


def _line(what: str, label: str, sources: Sequence[str]) -> str:
    more = f" (and {len(sources) - MOST_SOURCES} more)" if len(sources) > MOST_SOURCES else ""
    said = "; ".join(escape(one) for one in sources[:MOST_SOURCES])
    return f"<p>{what} {badge(label)} {MEANS[label]}: {said}{more}.</p>"
