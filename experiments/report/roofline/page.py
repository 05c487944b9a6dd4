"""Writes a network's rooflines on a board as one HTML file: the choice and why, both rooflines, the plane, sources."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.cards import cards
from experiments.report.cells import Cell, badge, figure, table, text
from experiments.report.chart import Section
from experiments.report.page import html_page
from experiments.report.quantities import number, percent
from experiments.report.roofline import charts
from fedge.roofline.model import implication
from fedge.roofline.surface import work_of
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from experiments.commands.roofline import Analysis

WIDE = ("MAXN", "Chosen")
"""Cards whose two figures need the whole width of a narrow screen."""


def write_page(found: Analysis, out: Path) -> None:
    """Write the page, replacing ``out`` as a whole."""
    sections = [
        Section(
            "Rooflines",
            "How fast, and how frugal, a kernel can be at its intensity, in the mode that the menu names. Left of the "
            "balance bytes take most of the time or energy, right of it FLOP.",
            (charts.roofline_chart(found, charts.TIME), charts.roofline_chart(found, charts.ENERGY)),
        ),
        Section("All modes", _implied(found), (charts.plane_chart(found),)),
        Section("The constants", "Of the modes above; per batch, as predicted.", (), _modes(found)),
        Section("Where it comes from", "Each number with its label.", (), _sources(found)),
    ]
    title = escape(f"{found.network.name} on {found.basis.spec.name}: rooflines")
    run_folder.write_text(out, html_page(title, _head(found), sections, "Everything is per batch, and predicted."))


def _head(found: Analysis) -> str:
    work = work_of(found.batch)
    facts = (
        f"inference, batch size {found.asked.batch_size}",
        f"{number(work.flop / 1e9)} GFLOP",
        f"{number(work.bytes / 1e6)} MB",
        f"{work.intensity:.3g} FLOP per byte",
        f"{len(found.network.layers)} layers",
    )
    return (
        f"<h1>{escape(found.network.name)} on {escape(found.basis.spec.title)}</h1>"
        f"<p class='soft'>{' · '.join(facts)}</p>{_cards(found)}<p>{escape(found.sentence)}</p>"
        f"<p>Constants are {badge(found.lines.label)} and every time and energy here is predicted from them.</p>"
    )


def _cards(found: Analysis) -> str:
    maxn, chosen = found.choice.maxn_row, found.choice.row
    line = found.lines.at(chosen)
    shown = (
        ("MAXN", _both(found, maxn), str(found.basis.modes[maxn])),
        ("Chosen", _both(found, chosen), str(found.basis.modes[chosen])),
        (
            "Energy saved",
            percent(found.choice.saving),
            f"{percent(found.choice.slowdown - 1)} slower; {percent(found.asked.max_slowdown - 1)} is allowed",
        ),
        ("Balance", f"{number(line.balance)} FLOP/B", f"of energy {number(line.energy_balance)}; chosen mode"),
    )
    return cards(((name, escape(value), escape(aside)) for name, value, aside in shown), WIDE)


def _both(found: Analysis, row: int) -> str:
    seconds, joules = float(found.spent.total_s[row]), float(found.joules[row])
    return f"{number(1e3 * seconds, 3, 'ms')}, {number(joules, 3, 'J')}"


def _implied(found: Analysis) -> str:
    line = found.lines.at(found.choice.row)
    return escape(
        f"Time-efficient implies energy-efficient in {found.implied:,} of {len(found.basis.modes):,} modes. "
        f"In the chosen one: {implication(line)}"
    )


def _modes(found: Analysis) -> str:
    from experiments.commands.roofline import HEADS, cells_of, rows_shown

    rows = []
    for word, row in rows_shown(found):
        first, mode, *numbers = cells_of(found, word, row)
        rows.append((Cell(escape(first)), text(mode), *(figure(value) for value in numbers)))
    return table(HEADS, rows, "roofline-constants")


def _sources(found: Analysis) -> str:
    from experiments.commands.roofline import labels_of

    spec, network = found.basis.spec, found.network
    rows = [
        ("constants", labels_of(found)),
        ("network", f"{network.source}; counted per operator, without fusion, at four bytes per element"),
        ("peak arithmetic", f"{spec.gpu_gflops.value:g} GFLOP/s; {spec.gpu_gflops.label}: {spec.gpu_gflops.source}"),
        ("peak memory", f"{spec.mem_gbps.value:g} GB/s; {spec.mem_gbps.label}: {spec.mem_gbps.source}"),
    ]
    return table(("", ""), [(text(word), text(said)) for word, said in rows], "sources")
