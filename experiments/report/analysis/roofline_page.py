"""Writes a network's rooflines on a board as one HTML file: the choice, both rooflines, time over energy, sources."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.analysis import roofline_charts
from experiments.report.chart import Section
from experiments.report.html_elements import TableCell, label_badge, number_cell, render_cards, render_table, text_cell
from experiments.report.quantities import number, percent
from experiments.report.run.run_page import render_page
from fedge.analysis.roofline.mode_rooflines import batch_to_work
from fedge.analysis.roofline.roofline_model import describe_implication
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis

WIDE_CARDS = ("MAXN", "Chosen")
"""Cards whose two values need the full width of a narrow screen."""


def write_roofline_page(found: RooflineAnalysis, out: Path) -> None:
    """Write the page atomically."""
    sections = [
        Section(
            "Rooflines",
            "How fast, and how frugal, a kernel can be at its intensity, in the mode that the menu names. Left of the "
            "balance bytes take most of the time or energy, right of it FLOP.",
            (
                roofline_charts.roofline_chart(found, roofline_charts.TIME_AXIS),
                roofline_charts.roofline_chart(found, roofline_charts.ENERGY_AXIS),
            ),
        ),
        Section("All modes", _describe_implication(found), (roofline_charts.time_energy_chart(found),)),
        Section("The constants", "Of the modes above; per batch, as predicted.", (), _modes_table(found)),
        Section("Where it comes from", "Each number with its label.", (), _sources_table(found)),
    ]
    title = escape(f"{found.network.name} on {found.basis.spec.name}: rooflines")
    run_folder.write_text(
        out, render_page(title, _render_head(found), sections, "Everything is per batch, and predicted.")
    )


def _render_head(found: RooflineAnalysis) -> str:
    work = batch_to_work(found.batch)
    facts = (
        f"inference, batch size {found.options.batch_size}",
        f"{number(work.flop / 1e9)} GFLOP",
        f"{number(work.bytes / 1e6)} MB",
        f"{work.intensity:.3g} FLOP per byte",
        f"{len(found.network.layers)} layers",
    )
    return (
        f"<h1>{escape(found.network.name)} on {escape(found.basis.spec.title)}</h1>"
        f"<p class='soft'>{' · '.join(facts)}</p>{_render_cards(found)}<p>{escape(found.explanation)}</p>"
        f"<p>Constants are {label_badge(found.lines.label)} and every time and energy here is predicted from them.</p>"
    )


def _render_cards(found: RooflineAnalysis) -> str:
    maxn, chosen = found.choice.maxn_row, found.choice.row
    line = found.lines.mode_roofline(chosen)
    shown = (
        ("MAXN", _format_time_energy(found, maxn), str(found.basis.modes[maxn])),
        ("Chosen", _format_time_energy(found, chosen), str(found.basis.modes[chosen])),
        (
            "Energy saved",
            percent(found.choice.saving),
            f"{percent(found.choice.slowdown - 1)} slower; {percent(found.options.max_slowdown - 1)} is allowed",
        ),
        ("Balance", f"{number(line.balance)} FLOP/B", f"of energy {number(line.energy_balance)}; chosen mode"),
    )
    return render_cards(((name, escape(value), escape(aside)) for name, value, aside in shown), WIDE_CARDS)


def _format_time_energy(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    return f"{number(1e3 * seconds, 3, 'ms')}, {number(joules, 3, 'J')}"


def _describe_implication(found: RooflineAnalysis) -> str:
    line = found.lines.mode_roofline(found.choice.row)
    return escape(
        f"Time-efficient implies energy-efficient in {found.implying_mode_count:,} of {len(found.basis.modes):,} "
        f"modes. "
        f"In the chosen one: {describe_implication(line)}"
    )


def _modes_table(found: RooflineAnalysis) -> str:
    from experiments.report.analysis.roofline_terminal import MODE_HEADINGS, format_mode_cells, list_shown_rows

    rows = []
    for word, row in list_shown_rows(found):
        first, mode, *numbers = format_mode_cells(found, word, row)
        rows.append((TableCell(escape(first)), text_cell(mode), *(number_cell(value) for value in numbers)))
    return render_table(MODE_HEADINGS, rows, "roofline-constants")


def _sources_table(found: RooflineAnalysis) -> str:
    from experiments.report.analysis.roofline_terminal import describe_constants

    spec, network = found.basis.spec, found.network
    rows = [
        ("constants", describe_constants(found)),
        ("network", f"{network.source}; counted per operator, without fusion, at four bytes per element"),
        ("peak arithmetic", f"{spec.gpu_gflops.value:g} GFLOP/s; {spec.gpu_gflops.label}: {spec.gpu_gflops.source}"),
        ("peak memory", f"{spec.mem_gbps.value:g} GB/s; {spec.mem_gbps.label}: {spec.mem_gbps.source}"),
    ]
    return render_table(("", ""), [(text_cell(word), text_cell(said)) for word, said in rows], "sources")
