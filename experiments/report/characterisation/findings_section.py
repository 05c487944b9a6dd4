"""The sections of findings and advice: sentences by decreasing strength, with their evidence in an expandable part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from experiments.report.page import Section, render_badge, render_template
from experiments.report.quantities import duration, energy, percent
from fedge.characterisation.findings import SweepFinding, describe_step
from fedge.characterisation.point_knobs import KIND_NAMES
from fedge.characterisation.tuning_advice import TuningAdvice

FIRST_SHOWN = 8
"""Findings shown at first, with the others expandable; with the next constants, defaults that limit the page's
length."""
MAX_FINDINGS = 60
MAX_LINKS = 8
"""Points that a finding links to."""
MAX_CARDS = 9
"""Cards on the page, with all advice in findings.json."""
MAX_OTHER_PLACES = 4
"""Other settings that a card names."""
NO_ADVICE_TEXT = "No change of a single knob is known to save time or energy."
QUANTITY_TITLES = {"e2e_s": "time per epoch", "energy_j": "energy per epoch"}


def build_findings_section(findings: Sequence[SweepFinding], names: Mapping[str, str], points: int) -> Section:
    """Build the section of findings.

    ``names`` are the short names of the points by key, ``points`` is the number of finished ones.
    """
    title = "Findings"
    if not points:
        return Section(title, "No point is finished yet.")
    if not findings:
        only = ", and there is one point" if points == 1 else ""
        return Section(title, f"No findings: they are drawn from points that differ in exactly one knob{only}.")
    ordered = sorted(findings, key=lambda one: -one.strength)[:MAX_FINDINGS]
    html = render_template(
        "characterisation_findings.html",
        first=ordered[:FIRST_SHOWN],
        others=ordered[FIRST_SHOWN:],
        hidden=len(findings) - len(ordered),
        names=names,
        max_links=MAX_LINKS,
        badge=render_badge,
    )
    return Section(title, "Strongest first. Expand one for its evidence and points.", html=html)


def build_advice_section(advice: Sequence[TuningAdvice], names: Mapping[str, str], points: int) -> Section:
    """Build the section of advice, the largest saving first, with one card per change of a knob wherever it helps.

    ``names`` are the short names of the points by key, ``points`` is the number of finished ones.
    """
    title = "Advice"
    if not advice:
        return Section(title, NO_ADVICE_TEXT if points else "No point is finished yet.")
    turns: dict[Hashable, dict[str, list[TuningAdvice]]] = {}
    for one in sorted(advice, key=lambda one: -one.saving):
        turn = (one.knob, one.now, one.then, one.label, one.expected.n > 0)  # measured apart from predicted
        turns.setdefault(turn, {}).setdefault(one.point, []).append(one)
    lead = (
        "Effect of changing one knob. Measured effects have the sweep's interval, predicted effects the error of the "
        "pipeline model."
    )
    html = render_template(
        "characterisation_advice.html",
        cards=[_make_card(list(places.values())) for places in list(turns.values())[:MAX_CARDS]],
        hidden=len(turns) - MAX_CARDS,
        names=names,
        badge=render_badge,
    )
    return Section(title, lead, html=html)


def _make_card(places: Sequence[Sequence[TuningAdvice]]) -> dict[str, object]:
    """Return the card of one change; for every setting to start from, there is the advice on time and energy."""
    best = places[0][0]
    others = places[1 : 1 + MAX_OTHER_PLACES]
    return {
        "turn": describe_step(best.knob, best.now, best.then).replace("->", "→"),
        "saving": _describe_savings(places[0]),
        "figures": [_describe_figures(one) for one in places[0]],
        "why": f"{best.why[:1].upper()}{best.why[1:].removesuffix('.')}.",
        "elsewhere": [f"{_describe_place(one[0])}: {_describe_savings(one)}" for one in others],
        "more": len(places) - 1 - len(others),
        "label": best.label,
        "place": _describe_place(best),
        "point": best.point,
    }


def _describe_place(one: TuningAdvice) -> str:
    return ", ".join((one.workload, one.board, KIND_NAMES[one.kind]))


def _describe_savings(advice: Sequence[TuningAdvice]) -> str:
    return ", ".join(
        f"{percent(abs(one.saving))} {'less' if one.saving >= 0 else 'more'} {QUANTITY_TITLES.get(one.quantity, '')}"
        for one in advice
    )


def _describe_figures(one: TuningAdvice) -> tuple[str, str, str]:
    """Return the present and the expected value, and the interval of the latter."""
    format_quantity = duration if one.quantity == "e2e_s" else energy
    low, high = format_quantity(one.expected.low), format_quantity(one.expected.high)
    interval = f" ({low} to {high})" if one.expected.is_bounded and low != high else ""
    return format_quantity(one.present), format_quantity(one.expected.value), interval
