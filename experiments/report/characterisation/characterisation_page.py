"""The page of a characterisation: its head (what was measured, progress, labels), its sections, style and script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from experiments.report.characterisation import (
    epoch_breakdown,
    findings_section,
    knob_charts,
    plane_chart,
    point_table,
    point_timeline,
    variability_chart,
)
from experiments.report.characterisation.characterisation_summary import CharacterisationSummary
from experiments.report.characterisation.knob_labels import KIND_NAMES
from experiments.report.characterisation.setting_families import make_short_names
from experiments.report.chart import Section
from experiments.report.html_elements import Card, label_badge, render_cards
from experiments.report.quantities import duration, energy, number, percent
from experiments.report.run.run_page import render_page
from fedge.telemetry import run_folder

LABEL_MEANINGS = {
    "measured": "timed on the machine itself",
    "calibrated": "of a model that was fitted to measurements; nothing here was timed on a board",
    "estimated": "of a model with figures from data sheets or chosen by us; nothing here was timed on a board",
}
MAX_SOURCES = 3


def build_head(told: CharacterisationSummary) -> str:
    """Build title, facts, cards, and the meaning and sources of each label.

    Returns:
        HTML.
    """
    plan = told.result.plan
    kinds = tuple(dict.fromkeys(KIND_NAMES[one.kind] for one in plan.points))
    facts = (
        _join_names("board", plan.boards),
        _join_names("workload", tuple(plan.workloads)),
        *((" and ".join(kinds),) if kinds else ()),
        _describe_schedule(told),
    )
    return (
        f"<h1>{escape(plan.name)}: where time and energy go</h1>"
        f"<p class='soft'>{' · '.join(escape(one) for one in facts)}</p>"
        f"{render_cards(_build_cards(told))}{_build_label_lines(told)}"
    )


def _join_names(word: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{word}{'s' * (len(names) != 1)} {shown}"


def _describe_schedule(told: CharacterisationSummary) -> str:
    course = told.result.plan.course
    epochs = f"{course.epochs} epoch{'s' * (course.epochs != 1)} per point"
    cut = f" of {course.minibatches} minibatches at most" if course.minibatches is not None else ""
    repeats = f", {course.repeats} repeats" if course.repeats > 1 else ""
    return f"{epochs}{cut}{repeats}"


def _build_cards(told: CharacterisationSummary) -> list[Card]:
    result, planned = told.result, len(told.result.plan.points)
    aside = [f"{len(some)} {word}" for word, some in (("skipped", result.skipped), ("failed", result.failed)) if some]
    left = planned - len(result.points) - len(result.skipped) - len(result.failed)
    aside += [f"{left} to come"] if left > 0 else []
    shown: list[Card] = [
        ("Points", f"{len(result.points):,} of {planned:,}", ", ".join(aside) or "all that the plan has"),
    ]
    if told.stats:
        shown += _build_extreme_cards(told)
    return shown


def _build_extreme_cards(told: CharacterisationSummary) -> list[Card]:
    stalls = [one.stall_s.value / one.e2e_s.value for one in told.stats if one.e2e_s.value > 0]
    epochs = [one.e2e_s.value for one in told.stats]
    joules = [one.energy_j.value for one in told.stats if one.energy_j is not None]
    restless = sum(not one.settled for one in told.stats)
    alone = len(epochs) == 1
    shown: list[Card] = [
        (
            "Stall",
            _format_span([percent(one, 0) for one in (min(stalls), max(stalls))]) if stalls else "–",
            "of an epoch",
        ),
        (
            "Epoch",
            _format_span([_format_brief(one) for one in (min(epochs), max(epochs))]),
            _epoch_caption(alone=alone),
        ),
    ]
    if joules:
        shown.append(("Energy", _format_span([energy(one) for one in (min(joules), max(joules))]), "of an epoch"))
    else:
        shown.append(("Energy", "not metered", "nobody metered power"))
    shown.append(("Settled", f"{len(epochs) - restless:,} of {len(epochs):,}", "points whose minibatches are steady"))
    spent = sum(one.seconds for one in told.result.points)
    shown.append(("Board's time", duration(spent), "that measuring took"))
    return shown


def _epoch_caption(*, alone: bool) -> str:
    return "end to end" if alone else "end to end, shortest to longest"


def _format_span(words: Sequence[str]) -> str:
    return words[0] if words[0] == words[-1] else f"{words[0]} – {words[-1]}"


def _format_brief(seconds: float) -> str:
    """Format a duration in one unit, so that two of them fit a card."""
    if seconds < 120:
        return number(seconds, 3, "s")
    return number(seconds / 60, 3, "min") if seconds < 7200 else number(seconds / 3600, 3, "h")


def _build_label_lines(told: CharacterisationSummary) -> str:
    """Build one line per label for time and for power, or one for both if they are the same."""
    time, power = (_group_sources(told, field) for field in ("label", "power_label"))
    lines = []
    for label in dict.fromkeys([*time, *power]):
        if time.get(label) == power.get(label):
            lines.append(_make_label_line("Time and power are", label, time[label]))
            continue
        lines += [
            _make_label_line(f"{what} is", label, given[label])
            for what, given in (("Time", time), ("Power", power))
            if label in given
        ]
    if told.stats and not told.has_power:
        lines.append("<p>Nobody metered power: there are no joules on this page.</p>")
    return "".join(lines)


def _group_sources(told: CharacterisationSummary, field: str) -> dict[str, list[str]]:
    """Return the distinct sources of every label."""
    found: dict[str, list[str]] = {}
    for one in told.result.points:
        label = getattr(one, field)
        if label and one.source not in found.setdefault(label, []):
            found[label].append(one.source)
    return found


def _make_label_line(what: str, label: str, sources: Sequence[str]) -> str:
    more = f" (and {len(sources) - MAX_SOURCES} more)" if len(sources) > MAX_SOURCES else ""
    said = "; ".join(escape(one) for one in sources[:MAX_SOURCES])
    return f"<p>{what} {label_badge(label)} {LABEL_MEANINGS[label]}: {said}{more}.</p>"


PAGE_STYLE = """
ol.findings { padding-left: 26px; margin: 10px 0; max-width: 112ch; }
ol.findings > li { margin: 7px 0; }
ol.findings summary { font-size: 15.5px; }
ol.findings details[open] summary { font-weight: 600; color: var(--ink); }
ol.findings ul { margin: 6px 0; padding-left: 20px; }
#contents { display: flex; flex-wrap: wrap; gap: 3px 18px; font-size: 13.5px; margin: 16px 0 0; }
#contents a { color: #2f77b4; text-underline-offset: 2px; }
details.more { margin: 8px 0; }
p.points { font-size: 13.5px; overflow-wrap: anywhere; }
a.point { color: inherit; text-decoration-color: #0072B2; text-underline-offset: 2px; }
.whatif { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 12px;
  margin: 14px 0; }
.whatif article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px 12px; }
.whatif h3 { margin: 0; font-size: 15px; overflow-wrap: anywhere; }
.whatif .saving { font-size: 18.5px; font-weight: 620; margin: 2px 0; }
.whatif .why { font-size: 14px; }
.keys { display: flex; margin: 6px 0 0; color: var(--ink); flex-wrap: wrap; gap: 2px 18px; font-size: 13.5px; }
section:has([id^=chart-parts]) > .grid, section:has([id^=chart-e2e_s]) > .grid { --min: 420px !important; }
.controls select { max-width: min(100%, 78ch); }
.controls label { max-width: 100%; }
tr:has(:target) { background: color-mix(in srgb, #E69F00 22%, transparent); }
.sortable .scroll { max-height: 80vh; overflow-y: auto; }
.sortable th { position: sticky; top: 0; background: var(--paper); cursor: pointer; }
.sortable th[aria-sort]::after { content: " ▲"; font-size: 10px; }
.sortable th[aria-sort=descending]::after { content: " ▼"; }
.sortable td { white-space: nowrap; padding-right: 14px; }
.sortable td:not(.n) { min-width: 0; }
.sortable td:last-child { min-width: 22ch; white-space: normal; }
"""

PAGE_SCRIPT = """
"use strict";
const sameSetting = JSON.parse(document.getElementById("same-setting").textContent);

function valueOf(cell) {
  const said = cell.textContent.trim(), plain = said.replace(/[,\\u00a0 %]/g, "").replace("\\u2212", "-");
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : said;
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, "en", { numeric: true });
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
      rows.sort((a, b) => (falling ? -1 : 1) * compared(a[0], b[0]));
      body.append(...rows.map((one) => one[1]));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

function holds(data, key) {
  return data.some((trace) => trace.meta === key || (trace.customdata || []).includes(key));
}

// Rings around a point in every picture that has it; menus turn to where it is.
function markPoint(given) {
  const key = sameSetting[given] || given;
  for (const chart of charts) {
    const found = chart.frames.findIndex((frame) => holds(frame.data, key));
    if (found >= 0 && !holds(chart.frames[chart.shown].data, key)) {
      const menu = document.getElementById("slider-" + chart.key);
      menu.value = found;
      menu.dispatchEvent(new Event("input"));
    }
    const place = document.getElementById("chart-" + chart.key), x = [], y = [];
    const old = place.data.findIndex((trace) => trace.name === "marked");
    if (old >= 0) Plotly.deleteTraces(place, old);
    for (const trace of place.data)
      if (trace.type === "scatter" && (trace.mode || "").includes("markers"))
        (trace.customdata || []).forEach((one, i) => { if (one === key) { x.push(trace.x[i]); y.push(trace.y[i]); } });
    if (x.length)
      Plotly.addTraces(place, { type: "scatter", mode: "markers", name: "marked", x, y, showlegend: false,
        hoverinfo: "skip", cliponaxis: false,
        marker: { symbol: "circle-open", size: 19, color: "#c8102e", line: { width: 2.5 } } });
  }
}

// The page is long where many knobs were turned.
function contents(place) {
  for (const head of document.querySelectorAll("h2")) {
    const link = document.createElement("a");
    head.id = head.textContent.toLowerCase().replace(/[^a-z0-9]+/g, "-");
    link.href = "#" + head.id;
    link.textContent = head.textContent;
    place.append(link);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  contents(document.getElementById("contents"));
  document.querySelectorAll(".sortable table").forEach(sortable);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-point]");
    if (link) markPoint(link.dataset.point);
  });
});
"""


def build_style_and_script(same: Mapping[str, str]) -> str:
    """Build the page's style, script and table of contents.

    Args:
        same: For a repeat's key, the key of its setting's first repeat, which the charts use.

    Returns:
        HTML.
    """
    told = json.dumps(dict(same), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<style>{PAGE_STYLE}</style><script type="application/json" id="same-setting">{told}</script>'
        f'<nav id="contents" aria-label="contents"></nav><script>{PAGE_SCRIPT}</script>'
    )


PERCENT_SPACE = re.compile(r"(?<=\d) %")
BREAKDOWN_LEAD = (
    "Seconds per epoch. Stall is how long training waits for its batch; without workers that is the making of the "
    "batch itself. The table below has every point."
)


def write_page(told: CharacterisationSummary, out: Path) -> None:
    """Write the page, replacing ``out`` atomically.

    Args:
        told: The sweep's results.
        out: The HTML file.
    """
    plan = told.result.plan
    same = {one.key: setting.key for setting in told.settings for one in setting.repeats[1:]}
    foot = f"Folder: {escape(str(told.result.folder))}. Seed {plan.seed}."
    page = render_page(
        f"{escape(plan.name)}: characterisation",
        build_head(told) + build_style_and_script(same),
        build_sections(told),
        foot,
    )
    run_folder.write_text(out, page)


def build_sections(told: CharacterisationSummary) -> list[Section]:
    """Build the page's sections, from the findings to the tables behind them.

    Args:
        told: The sweep's results.
    """
    names = point_table.name_points(told, make_short_names(told.settings))
    points = len(told.stats)
    spoken = [
        findings_section.build_findings_section(told.findings, names, points),
        findings_section.build_advice_section(told.advice, names, points),
    ]
    shown = _build_chart_sections(told) if told.settings else []
    missing = point_table.build_omitted_section(told)
    return [
        *map(_keep_percents_together, [*spoken, *shown]),
        point_table.build_points_section(told),
        *([missing] if missing else []),
    ]


def _keep_percents_together(section: Section) -> Section:
    """Prevent line breaks before percent signs in sentences and titles; tables stay as they are, for copying."""
    charts = tuple(replace(chart, title=_join_percents(chart.title)) for chart in section.charts)
    return replace(section, charts=charts, html=section.html if charts else _join_percents(section.html))


def _join_percents(words: str) -> str:
    return PERCENT_SPACE.sub("\N{NO-BREAK SPACE}%", words)


def _build_chart_sections(told: CharacterisationSummary) -> list[Section]:
    finished = told.finished_by_key
    energy = plane_chart.build_plane_section(told.settings)
    return [
        Section(
            "Where the time goes",
            f"{BREAKDOWN_LEAD}{epoch_breakdown.build_part_legend(told.settings)}",
            epoch_breakdown.build_breakdown_charts(told.settings),
        ),
        *knob_charts.build_knob_sections(told.settings, told.has_power),
        *([energy] if energy else []),
        point_timeline.build_timeline_section(told.settings, finished, told.result.plan.course.discard),
        point_timeline.build_sensor_section(told.settings, finished),
        variability_chart.build_variability_section(told.variability),
    ]
