"""The sections of findings and advice: sentences by decreasing strength, with their evidence in an expandable part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from html import escape

from experiments.report.characterisation.knob_labels import KIND_NAMES, KNOB_TITLES, format_knob_value
from experiments.report.characterisation.point_table import link_point, link_points
from experiments.report.chart import Section
from experiments.report.html_elements import label_badge
from experiments.report.quantities import duration, energy, percent
from fedge.characterisation.point_knobs import KnobValue
from fedge.characterisation.sweep_findings import SweepFinding
from fedge.characterisation.tuning_advice import TuningAdvice

FIRST_SHOWN = 10
"""Findings shown at first, with the others expandable; with the next constant, a default that limits the page's
length."""
MAX_FINDINGS = 60


def build_findings_section(found: Sequence[SweepFinding], names: Mapping[str, str], points: int) -> Section:
    """Build the section of findings.

    Args:
        found: All findings.
        names: Short names of the points by key.
        points: Number of finished points.
    """
    title = "What was found"
    if not found:
        why = (
            "No point is finished yet."
            if not points
            else (
                "Nothing stands out: findings come of points that differ in one knob alone"
                + (", and there is one point." if points == 1 else ".")
            )
        )
        return Section(title, why, ())
    ordered = sorted(found, key=lambda one: -one.strength)
    first = _make_items(ordered[:FIRST_SHOWN], names)
    rest = ordered[FIRST_SHOWN:MAX_FINDINGS]
    cut = (
        f"<p class='caption'>{len(found) - MAX_FINDINGS:,} weaker ones are in findings.json.</p>"
        if len(found) > MAX_FINDINGS
        else ""
    )
    unfolded = f"{_make_items(rest, names, FIRST_SHOWN + 1)}{cut}"
    more = f"<details class='more'><summary>{len(rest)} more</summary>{unfolded}</details>" if rest else ""
    return Section(title, "The strongest first. Unfold one for its evidence and its points.", (), first + more)


def _make_items(found: Sequence[SweepFinding], names: Mapping[str, str], start: int = 1) -> str:
    items = "".join(f"<li>{_make_finding_html(one, names)}</li>" for one in found)
    return f'<ol class="findings" start="{start}">{items}</ol>'


def _make_finding_html(one: SweepFinding, names: Mapping[str, str]) -> str:
    evidence = "".join(f"<li>{escape(sentence)}</li>" for sentence in one.evidence)
    about = ", ".join(word for word in (one.workload, one.board) if word)
    aside = f'<p class="caption">{label_badge(one.label)} {escape(about)}</p>'
    return (
        f"<details><summary>{escape(one.title)}</summary><ul>{evidence}</ul>{link_points(one.points, names)}"
        f"{aside}</details>"
    )


NO_ADVICE_TEXT = "No knob is known that would make an epoch shorter or cheaper."
QUANTITY_TITLES = {"e2e_s": "time per epoch", "energy_j": "energy per epoch"}
CLOCK_KNOBS = ("cpu_mhz", "gpu_mhz", "mem_mhz")
MAX_CARDS = 9
"""Cards on the page, with all advice in findings.json; a default that limits the page's length, as is the next one."""
MAX_OTHER_PLACES = 4
"""Other settings that a card names."""


def build_advice_section(found: Sequence[TuningAdvice], names: Mapping[str, str], points: int) -> Section:
    """Build the section of advice, the largest saving first, with one card per change of a knob wherever it helps.

    Args:
        found: All advice.
        names: Short names of the points by key.
        points: Number of finished points.
    """
    title = "What to turn next"
    if not found:
        why = "No point is finished yet." if not points else NO_ADVICE_TEXT
        return Section(title, why, ())
    turns: dict[Hashable, dict[str, list[TuningAdvice]]] = {}
    for one in sorted(found, key=lambda one: -one.saving):
        turn = (one.knob, one.now, one.then, one.label, one.expected.n > 0)  # measured apart from predicted
        turns.setdefault(turn, {}).setdefault(one.point, []).append(one)
    lead = (
        "One knob turned, all else as it is. What the sweep has seen comes with its own interval, what the pipeline "
        "model expects with the model's error."
    )
    rest = len(turns) - MAX_CARDS
    left = f'<p class="caption">{rest:,} more {"is" if rest == 1 else "are"} in findings.json.</p>' if rest > 0 else ""
    shown = "".join(_make_card(list(places.values()), names) for places in list(turns.values())[:MAX_CARDS])
    return Section(title, lead, (), f'<div class="whatif">{shown}</div>{left}')


def _make_card(places: Sequence[Sequence[TuningAdvice]], names: Mapping[str, str]) -> str:
    """Build the card of one change and, for every setting to start from, its saving of time and energy."""
    best, *_ = first = places[0]
    unit = " MHz" if best.knob in CLOCK_KNOBS else ""
    turned = (
        f"{KNOB_TITLES.get(best.knob, best.knob)}: {_format_value(best, best.now)} → "
        f"{_format_value(best, best.then)}{unit}"
    )
    start = f" From {link_point(best.point, names[best.point])}." if best.point in names else ""
    figures = "".join(f"<p>{_describe_figures(one)}</p>" for one in first)
    also = [
        f"{escape(_describe_place(some[0]))}: {_describe_savings(some)}" for some in places[1 : 1 + MAX_OTHER_PLACES]
    ]
    more = f"; and {len(places) - 1 - MAX_OTHER_PLACES:,} more" if len(places) > 1 + MAX_OTHER_PLACES else ""
    elsewhere = f'<p class="why">The same: {"; ".join(also)}{more}.</p>' if also else ""
    return (
        f'<article><h3>{escape(turned)}</h3><p class="saving">{_describe_savings(first)}</p>'
        f'{figures}<p class="why">{escape(_to_sentence(best.why))}</p>{elsewhere}'
        f'<p class="caption">{label_badge(best.label)} {escape(_describe_place(best))}.{start}</p></article>'
    )


def _describe_place(one: TuningAdvice) -> str:
    return ", ".join((one.workload, one.board, KIND_NAMES.get(one.kind, one.kind)))


def _describe_savings(found: Sequence[TuningAdvice]) -> str:
    """Describe the savings of time and energy."""
    return ", ".join(f"{_describe_saving(one)} {QUANTITY_TITLES.get(one.quantity, '')}" for one in found)


def _describe_figures(one: TuningAdvice) -> str:
    return (
        f"{_format_quantity(one, one.present)} → "
        f"<b>{_format_quantity(one, one.expected.value)}</b>{_format_interval(one)}"
    )


def _format_value(one: TuningAdvice, value: KnobValue) -> str:
    return format_knob_value(one.knob, value)


def _describe_saving(one: TuningAdvice) -> str:
    return f"{percent(abs(one.saving))} {'less' if one.saving >= 0 else 'more'}"


def _to_sentence(words: str) -> str:
    """Add a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")


def _format_quantity(one: TuningAdvice, value: float) -> str:
    return duration(value) if one.quantity == "e2e_s" else energy(value)


def _format_interval(one: TuningAdvice) -> str:
    if not one.expected.is_bounded:
        return ""
    low, high = _format_quantity(one, one.expected.low), _format_quantity(one, one.expected.high)
    return f" ({low} to {high})" if low != high else ""
