"""The page of a characterisation: its head (what was measured, progress, labels) and its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from experiments.report.characterisation import knob_charts, point_timeline, setting_charts
from experiments.report.characterisation.characterisation_summary import (
    CharacterisationSummary,
    collect_knobs,
    summarise_result,
    summary_to_json,
)
from experiments.report.characterisation.setting_families import make_short_names
from experiments.report.page import Card, Section, render_badge, render_page, render_paragraph, render_template
from experiments.report.quantities import UNKNOWN, capitalise, duration, energy, join_names, number, percent, ratio
from experiments.report.tables import Cell, Column, Table, build_table, number_cell, percent_cell, text_cell, value_cell
from fedge.atomic_files import write_text
from fedge.characterisation.findings import SweepFinding, describe_step
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.sweep_plan import (
    KIND_NAMES,
    KNOB_TITLES,
    KNOBS,
    SweepPoint,
    describe_point,
    format_knob_value,
)
from fedge.characterisation.sweep_store import FINDINGS_FILE, SweepResult, to_write_error
from fedge.characterisation.tuning_advice import TuningAdvice
from fedge.confidence_interval import Estimate
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
MAX_REASONS = 60
"""Skipped or failed points up to which each one is listed; above it, points are counted by reason. A default that
limits the page's length."""
MAX_NOTE_CHARS = 40
"""Length of notes above which they are folded."""
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
        "show_findings",
        ordered[:FIRST_SHOWN],
        ordered[FIRST_SHOWN:],
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
        "show_advice",
        [_make_card(list(places.values())) for places in list(turns.values())[:MAX_CARDS]],
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
        "why": f"{capitalise(best.why).removesuffix('.')}.",
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
    values = (one.present, one.expected.value, one.expected.low, one.expected.high)
    present, expected, low, high = map(duration if one.quantity == "e2e_s" else energy, values)
    return present, expected, f" ({low} to {high})" if one.expected.is_bounded and low != high else ""


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
    course = plan.course
    cut = f" of at most {course.minibatches:,} steps" if course.minibatches is not None else ""
    repeats = f", {course.repeats} repeats" if course.repeats > 1 else ""
    text = render_page(
        f"{plan.name}: characterisation",
        build_sections(summary),
        f"Folder: {summary.result.folder}. Seed {plan.seed}.",
        heading=f"{plan.name}: time and energy",
        facts=(
            *(
                f"{word}{'s' * (len(names) != 1)} {join_names(names, MAX_NAMES)}"
                for word, names in (("board", plan.boards), ("workload", tuple(plan.workloads)))
            ),
            *filter(None, [" and ".join(dict.fromkeys(KIND_NAMES[one.kind] for one in plan.points))]),
            f"{course.epochs} epoch{'s' * (course.epochs != 1)} per point{cut}{repeats}",
        ),
        cards=_list_cards(summary),
        notes=_describe_labels(summary),
        below=render_template("show_head", first_repeats),
    )
    write_text(out, text)


def build_sections(summary: CharacterisationSummary) -> list[Section]:
    """Build the page's sections, from the findings to the tables behind them."""
    points, settings = len(summary.stats), summary.settings
    short, names = make_short_names(settings), dict[str, str]()
    for setting in settings:
        for one in setting.repeats:
            repeat = f", repeat {one.point.repeat + 1}" if len(setting.repeats) > 1 else ""
            names[one.key] = short[setting.key] + repeat
    sections = [
        build_findings_section(summary.findings, names, points),
        build_advice_section(summary.advice, names, points),
    ]
    if settings:
        discard = summary.result.plan.course.discard
        sections += [
            knob_charts.build_knob_section(settings, metered=summary.has_power),
            *setting_charts.build_plane_section(settings),
            point_timeline.build_point_section(settings, summary.finished_by_key, discard),
            setting_charts.build_variability_section(summary.variability),
        ]
    return [*sections, build_points_section(summary), *_build_omitted_section(summary)]


def _list_cards(summary: CharacterisationSummary) -> Iterator[Card]:
    result, planned, stats = summary.result, len(summary.result.plan.points), summary.stats
    left = planned - len(result.points) - len(result.skipped) - len(result.failed)
    counts = {"skipped": len(result.skipped), "failed": len(result.failed), "to come": left}
    missing = ", ".join(f"{count} {word}" for word, count in counts.items() if count > 0)
    yield Card("Points", f"{len(result.points):,} of {planned:,}", missing or "the whole plan")
    if not stats:
        return
    stalls = [share for one in stats if (share := ratio(one.stall_s.value, one.e2e_s.value)) is not None]
    yield Card("Stall", _format_span(stalls, lambda share: percent(share, 0)), "of the epoch")
    spread = f"end to end{', minimum to maximum' * (len(stats) > 1)}"
    yield Card("Epoch", _format_span([one.e2e_s.value for one in stats], _format_brief_time), spread)
    energies_j = [one.energy_j.value for one in stats if one.energy_j is not None]
    yield Card("Energy", _format_span(energies_j, energy), "per epoch" if energies_j else "power was not measured")
    steady = sum(one.settled for one in stats)
    yield Card("Settled", f"{steady:,} of {len(stats):,}", "points with steady step times")
    yield Card("Measuring time", duration(sum(one.seconds for one in result.points)), "sum over all points")


def _format_span(values: Sequence[float], write: Callable[[float], str]) -> str:
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
        both = time.get(label) == power.get(label)
        quantities = (("Time and power", time),) if both else (("Time", time), ("Power", power))
        for quantity, sources in quantities:
            if label in sources:
                more = f" (and {len(sources[label]) - MAX_SOURCES} more)" if len(sources[label]) > MAX_SOURCES else ""
                text = f"{LABEL_MEANINGS[label]}: {'; '.join(sources[label][:MAX_SOURCES])}{more}."
                yield Markup("{}: {} {}").format(quantity, render_badge(label), text)
    if summary.stats and not summary.has_power:
        yield "Power was not measured, so this page has no energy."


def _group_sources(summary: CharacterisationSummary, field: str) -> dict[str, list[str]]:
    sources: dict[str, list[str]] = {}
    for one in summary.result.points:
        label = getattr(one, field)
        if label and one.source not in sources.setdefault(label, []):
            sources[label].append(one.source)
    return sources


def build_points_section(summary: CharacterisationSummary) -> Section:
    """Build the section with one row per finished point."""
    if not summary.stats:
        return Section("All points", "No point is finished.")
    course = summary.result.plan.course
    discarded = f", without the first {course.discard}" if course.discard else ""
    lead = (
        f"Means per epoch of {course.epochs} epochs{discarded}; ± is half of the 95 % interval. Outliers and warm-up "
        "are numbers of steps. Click a header to sort."
    )
    common = [render_paragraph(f"At all points: {one}.", "caption") for one in _find_common_notes(summary.stats)]
    table = Markup('<div class="sortable">{}</div>').format(build_points_table(summary).html)
    return Section("All points", lead, html=table + Markup().join(common))


def _find_common_notes(stats: Sequence[PointStats]) -> tuple[str, ...]:
    """Return the notes that all of several points share, which the rows then omit."""
    if len(stats) < 2:
        return ()
    return tuple(note for note in dict.fromkeys(stats[0].notes) if all(note in one.notes for one in stats))


def build_points_table(summary: CharacterisationSummary) -> Table:
    """Build the table of points, without knobs that have the same value everywhere."""
    stats, common = summary.stats, {*_find_common_notes(summary.stats)}
    columns: list[Column[PointStats]] = [
        ("point", lambda one: Cell(Markup('<code id="point-{}">{}</code>').format(one.point.key, one.point.key))),
        ("board", lambda one: text_cell(one.point.board)),
    ]
    varied = (name for name in KNOBS if len({getattr(one.point, name) for one in stats}) > 1 or name == "workload")
    columns += [(KNOB_TITLES[name], partial(_make_knob_cell, name)) for name in varied]
    if len({one.point.repeat for one in stats}) > 1:
        columns.append(("repeat", lambda one: value_cell(one.point.repeat + 1)))
    columns += [
        ("E2E (s)", lambda one: _make_mean_cell(one.e2e_s, "s")),
        ("± (s)", lambda one: _make_half_width_cell(one.e2e_s)),
        ("stall (s)", lambda one: _make_mean_cell(one.stall_s, "s")),
        ("stall", lambda one: percent_cell(ratio(one.stall_s.value, one.e2e_s.value))),
        ("compute (s)", lambda one: _make_mean_cell(one.compute_s, "s")),
    ]
    if summary.has_power:
        columns.append(("energy (J)", lambda one: _make_mean_cell(one.energy_j, "J")))
        columns.append(("power (W)", lambda one: _make_mean_cell(one.power_w, "W")))
    columns += [
        ("settled", lambda one: text_cell("yes") if one.settled else _make_folded_cell("no", one.unsettled_reason)),
        ("warm-up", lambda one: value_cell(one.warm_up)),
        ("outliers", lambda one: value_cell(one.outliers)),
        ("label", _make_label_cell),
        ("notes", lambda one: _make_notes_cell(one, common)),
    ]
    return build_table("points", columns, sorted(stats, key=_point_sort_key))


def _point_sort_key(one: PointStats) -> tuple[Any, ...]:
    """Sort by the knobs in their order, since the plan's order is random."""
    known = [(value is not None, value) for value in collect_knobs(one.point).values()]
    return tuple(known), one.point.repeat


def _make_knob_cell(name: str, one: PointStats) -> Cell:
    value = getattr(one.point, name)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value_cell(value) if is_count else text_cell(format_knob_value(name, value))


def _make_mean_cell(amount: Estimate | None, unit: str) -> Cell:
    return value_cell(None if amount is None else amount.value, number, unit)


def _make_half_width_cell(amount: Estimate) -> Cell:
    half_s = (amount.high - amount.low) / 2 if amount.is_bounded else None
    return number_cell(number(half_s, 2), half_s, "s")


def _make_label_cell(one: PointStats) -> Cell:
    labels = tuple(dict.fromkeys(label for label in (one.label, one.power_label) if label))
    return Cell(Markup(" ").join(map(render_badge, labels)), words="; ".join(labels))


def _make_notes_cell(one: PointStats, common: AbstractSet[str]) -> Cell:
    own = [note for note in one.notes if note not in common]
    notes = "; ".join((*(["throttled"] if one.throttled else []), *own))
    count = f"{len(own)} note{'s' * (len(own) != 1)}"
    return text_cell(notes) if len(notes) <= MAX_NOTE_CHARS else _make_folded_cell(count, notes)


def _make_folded_cell(word: str, details: str) -> Cell:
    if not details:
        return text_cell(word)
    html = Markup("<details><summary>{}</summary>{}</details>").format(word, details)
    return Cell(html, words=f"{word}: {details}")


def _build_omitted_section(summary: CharacterisationSummary) -> Iterator[Section]:
    omitted = (("failed", summary.result.failed), ("skipped", summary.result.skipped))
    tables = Markup().join(
        Markup("<h3>{:,} {}</h3>{}").format(len(points), word, build_reasons_table(word, points).html)
        for word, points in omitted
        if points
    )
    if tables:
        yield Section("Skipped and failed", "Points without results, by reason.", html=tables)


def build_reasons_table(word: str, points: Sequence[tuple[SweepPoint, str]]) -> Table:
    """Build a table of points without results and the reasons; of many points, it has one row per reason."""
    if len(points) > MAX_REASONS:
        counts = Counter(reason for _, reason in points).most_common(MAX_REASONS)
        return Table(word, ("points", "why"), tuple((value_cell(n), text_cell(reason)) for reason, n in counts))
    rows = tuple(
        (Cell(Markup("<code>{}</code>").format(one.key)), text_cell(describe_point(one)), text_cell(reason))
        for one, reason in points
    )
    return Table(word, ("point", "setting", "why"), rows)
