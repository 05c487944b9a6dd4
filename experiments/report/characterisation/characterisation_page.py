"""The page of a characterisation: its head (what was measured, progress, labels) and its sections."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from experiments.report.characterisation import (
    knob_charts,
    point_table,
    point_timeline,
    setting_charts,
)
from experiments.report.characterisation.characterisation_summary import (
    CharacterisationSummary,
    summarise_result,
    summary_to_json,
)
from experiments.report.characterisation.setting_families import make_short_names
from experiments.report.page import Card, Section, render_badge, render_page, render_template
from experiments.report.quantities import UNKNOWN, duration, energy, number, percent, ratio
from fedge.atomic_files import write_text
from fedge.characterisation.findings import SweepFinding, describe_step
from fedge.characterisation.sweep_plan import KIND_NAMES
from fedge.characterisation.sweep_store import FINDINGS_FILE, SweepResult, to_write_error
from fedge.characterisation.tuning_advice import TuningAdvice
from fedge.telemetry import run_folder

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


LABEL_MEANINGS = {
    "measured": "measured on the machine itself",
    "calibrated": "computed by a model that was fitted to measurements; nothing here was measured on a board",
    "estimated": "computed by a model from data sheets or assumptions; nothing here was measured on a board",
}
MAX_SOURCES, MAX_NAMES = 3, 6


def write_report(result: SweepResult) -> list[Path]:
    """Write ``report.html`` and ``findings.json`` into the sweep's folder, each atomically; return both paths."""
    summary = summarise_result(result)
    page, findings = result.folder / run_folder.REPORT, result.folder / FINDINGS_FILE
    try:
        write_page(summary, page)
        run_folder.write_json(findings, summary_to_json(summary))
    except OSError as error:
        raise to_write_error(page, error) from error
    return [page, findings]


def write_page(summary: CharacterisationSummary, out: Path) -> None:
    """Write the page, replacing ``out`` atomically."""
    plan = summary.result.plan
    # Charts show settings; a link to a repeat marks its setting, by the key of the first repeat.
    first_repeats = {one.key: setting.key for setting in summary.settings for one in setting.repeats[1:]}
    facts = (
        _join_names("board", plan.boards),
        _join_names("workload", tuple(plan.workloads)),
        " and ".join(dict.fromkeys(KIND_NAMES[one.kind] for one in plan.points)),
        _describe_schedule(summary),
    )
    text = render_page(
        f"{plan.name}: characterisation",
        build_sections(summary),
        f"Folder: {summary.result.folder}. Seed {plan.seed}.",
        heading=f"{plan.name}: time and energy",
        facts=filter(None, facts),
        cards=_build_cards(summary),
        notes=_describe_labels(summary),
        below=render_template("characterisation_head.html", first_repeats=first_repeats),
    )
    write_text(out, text)


def build_sections(summary: CharacterisationSummary) -> list[Section]:
    """Build the page's sections, from the findings to the tables behind them."""
    names = point_table.name_points(summary, make_short_names(summary.settings))
    points = len(summary.stats)
    return [
        build_findings_section(summary.findings, names, points),
        build_advice_section(summary.advice, names, points),
        *(_build_chart_sections(summary) if summary.settings else []),
        point_table.build_points_section(summary),
        *([omitted] if (omitted := point_table.build_omitted_section(summary)) else []),
    ]


def _build_chart_sections(summary: CharacterisationSummary) -> list[Section]:
    plane = setting_charts.build_plane_section(summary.settings)
    return [
        knob_charts.build_knob_section(summary.settings, metered=summary.has_power),
        *([plane] if plane else []),
        point_timeline.build_point_section(
            summary.settings, summary.finished_by_key, summary.result.plan.course.discard
        ),
        setting_charts.build_variability_section(summary.variability),
    ]


def _join_names(word: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{word}{'s' * (len(names) != 1)} {', '.join(names[:MAX_NAMES])}{more}"


def _describe_schedule(summary: CharacterisationSummary) -> str:
    course = summary.result.plan.course
    cut = f" of at most {course.minibatches:,} steps" if course.minibatches is not None else ""
    repeats = f", {course.repeats} repeats" if course.repeats > 1 else ""
    return f"{course.epochs} epoch{'s' * (course.epochs != 1)} per point{cut}{repeats}"


def _build_cards(summary: CharacterisationSummary) -> list[Card]:
    result, planned = summary.result, len(summary.result.plan.points)
    left = planned - len(result.points) - len(result.skipped) - len(result.failed)
    counts = {"skipped": len(result.skipped), "failed": len(result.failed), "to come": left}
    missing = ", ".join(f"{count} {word}" for word, count in counts.items() if count > 0)
    progress = Card("Points", f"{len(result.points):,} of {planned:,}", missing or "the whole plan")
    return [progress, *(_build_figure_cards(summary) if summary.stats else ())]


def _build_figure_cards(summary: CharacterisationSummary) -> list[Card]:
    stats = summary.stats
    stalls = [share for one in stats if (share := ratio(one.stall_s.value, one.e2e_s.value)) is not None]
    epochs_s = [one.e2e_s.value for one in stats]
    energies_j = [one.energy_j.value for one in stats if one.energy_j is not None]
    spans = (
        ("Stall", stalls, lambda share: percent(share, 0), "of the epoch"),
        ("Epoch", epochs_s, _format_brief_time, f"end to end{', minimum to maximum' * (len(stats) > 1)}"),
        ("Energy", energies_j, energy, "per epoch" if energies_j else "power was not measured"),
    )
    steady = sum(one.settled for one in stats)
    return [
        *(Card(name, _format_span(values, write), remark) for name, values, write, remark in spans),
        Card("Settled", f"{steady:,} of {len(stats):,}", "points with steady step times"),
        Card("Measuring time", duration(sum(one.seconds for one in summary.result.points)), "sum over all points"),
    ]


def _format_span(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Format the least and the largest value."""
    return " – ".join(dict.fromkeys(write(end) for end in (min(values), max(values)))) if values else UNKNOWN


def _format_brief_time(seconds: float) -> str:
    """Format a duration in one unit, so that two of them fit a card."""
    if seconds < 120:
        return number(seconds, 3, "s")
    return number(seconds / 60, 3, "min") if seconds < 7200 else number(seconds / 3600, 3, "h")


def _describe_labels(summary: CharacterisationSummary) -> Iterator[str | Markup]:
    """Yield a line per label for time and for power, or one for both if they are the same."""
    time, power = (_group_sources(summary, field) for field in ("label", "power_label"))
    for label in dict.fromkeys([*time, *power]):
        if time.get(label) == power.get(label):
            yield _describe_label("Time and power", label, time[label])
            continue
        for quantity, sources in (("Time", time), ("Power", power)):
            if label in sources:
                yield _describe_label(quantity, label, sources[label])
    if summary.stats and not summary.has_power:
        yield "Power was not measured, so this page has no energy."


def _group_sources(summary: CharacterisationSummary, field: str) -> dict[str, list[str]]:
    sources: dict[str, list[str]] = {}
    for one in summary.result.points:
        label = getattr(one, field)
        if label and one.source not in sources.setdefault(label, []):
            sources[label].append(one.source)
    return sources


def _describe_label(quantity: str, label: str, sources: Sequence[str]) -> Markup:
    more = f" (and {len(sources) - MAX_SOURCES} more)" if len(sources) > MAX_SOURCES else ""
    text = f"{LABEL_MEANINGS[label]}: {'; '.join(sources[:MAX_SOURCES])}{more}."
    return Markup("{}: {} {}").format(quantity, render_badge(label), text)
