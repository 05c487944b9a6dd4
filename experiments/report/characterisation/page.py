"""Writes the page of a characterisation: one HTML file with its figures, its data and Plotly; it works offline."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from pathlib import Path

from experiments.report.characterisation import (
    advice,
    against,
    breakdown,
    findings,
    plane,
    rows,
    scatter,
    strips,
    timeline,
)
from experiments.report.characterisation.families import short_names
from experiments.report.characterisation.head import head
from experiments.report.characterisation.program import program
from experiments.report.characterisation.told import Told
from experiments.report.chart import Section
from experiments.report.page import html_page
from fedge.telemetry import run_folder

PERCENT = re.compile(r"(?<=\d) %")
WITHOUT_WORKERS = (
    "Seconds per epoch. Stall is how long training waits for its batch; without workers that is the making of the "
    "batch itself. The table below has every point."
)


def write_page(told: Told, out: Path) -> None:
    """Write the page, replacing ``out`` as a whole."""
    plan = told.result.plan
    same = {one.key: setting.key for setting in told.settings for one in setting.repeats[1:]}
    foot = f"Folder: {escape(str(told.result.folder))}. Seed {plan.seed}."
    page = html_page(f"{escape(plan.name)}: characterisation", head(told) + program(same), sections(told), foot)
    run_folder.write_text(out, page)


def sections(told: Told) -> list[Section]:
    """What the page shows, from the words to the figures behind them."""
    names = rows.names_by_key(told, short_names(told.settings))
    points = len(told.stats)
    spoken = [findings.section(told.findings, names, points), advice.section(told.advice, names, points)]
    shown = _pictures(told) if told.settings else []
    missing = rows.left_out(told)
    return [*map(_unbroken, [*spoken, *shown]), rows.section(told), *([missing] if missing else [])]


def _unbroken(section: Section) -> Section:
    """No line of its sentences and titles begins with a percent sign; tables are left as they are, to be copied."""
    charts = tuple(replace(chart, title=_joined(chart.title)) for chart in section.charts)
    return replace(section, charts=charts, html=section.html if charts else _joined(section.html))


def _joined(words: str) -> str:
    return PERCENT.sub("\N{NO-BREAK SPACE}%", words)


def _pictures(told: Told) -> list[Section]:
    finished = told.finished
    energy = plane.section(told.settings)
    return [
        Section(
            "Where the time goes",
            f"{WITHOUT_WORKERS}{breakdown.legend(told.settings)}",
            breakdown.breakdowns(told.settings),
        ),
        *against.sections(told.settings, told.metered),
        *([energy] if energy else []),
        timeline.section(told.settings, finished, told.result.plan.course.discard),
        strips.section(told.settings, finished),
        scatter.section(told.variability),
    ]
