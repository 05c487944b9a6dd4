"""Writes a network's rooflines on a board as one HTML file: the choice, both rooflines, time over energy, sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.analysis import roofline_charts
from experiments.report.analysis.roofline_terminal import describe_constants, describe_implying_modes, modes_table
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.quantities import number, percent
from experiments.report.tables import Table, text_cell
from fedge.analysis.roofline.roofline_model import batch_to_work, describe_implication

if TYPE_CHECKING:
    from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis


def write_roofline_page(found: RooflineAnalysis, out: Path) -> None:
    """Write the page atomically."""
    sections = [
        Section(
            "Rooflines",
            "Attainable performance, and performance per joule, over arithmetic intensity in the selected mode. Left "
            "of the balance, bytes dominate time or energy; right of it, FLOP.",
            (
                roofline_charts.roofline_chart(found, roofline_charts.TIME_AXIS),
                roofline_charts.roofline_chart(found, roofline_charts.ENERGY_AXIS),
            ),
        ),
        Section("All modes", _describe_implication(found), (roofline_charts.time_energy_chart(found),)),
        Section("Constants", "Constants of the modes above, and predictions per batch.", html=modes_table(found).html),
        Section("Sources", "Provenance of each number.", html=_sources_table(found).html),
    ]
    work = batch_to_work(found.batch)
    label = Markup("Constants are {}; all times and energies are predicted from them.")
    write_page(
        out,
        f"{found.network.name} on {found.basis.spec.name}: rooflines",
        sections,
        "All values are predicted, per batch.",
        heading=f"{found.network.name} on {found.basis.spec.title}",
        facts=(
            f"inference, batch size {found.options.batch_size}",
            f"{number(work.flop / 1e9)} GFLOP",
            f"{number(work.bytes / 1e6)} MB",
            f"{work.intensity:.3g} FLOP per byte",
            f"{len(found.network.layers)} layers",
        ),
        cards=_list_cards(found),
        notes=(found.explanation, label.format(render_badge(found.lines.label))),
    )


def _list_cards(found: RooflineAnalysis) -> list[Card]:
    maxn, chosen = found.choice.maxn_row, found.choice.row
    line = found.lines.mode_roofline(chosen)
    slower, limit = percent(found.choice.slowdown - 1), percent(found.options.max_slowdown - 1)
    # Two values need the full width of a narrow screen.
    return [
        Card("MAXN", _format_time_energy(found, maxn), str(found.basis.modes[maxn]), wide=True),
        Card("Chosen", _format_time_energy(found, chosen), str(found.basis.modes[chosen]), wide=True),
        Card("Energy saved", percent(found.choice.saving), f"{slower} slower; limit {limit}"),
        Card("Balance", f"{number(line.balance)} FLOP/B", f"of energy {number(line.energy_balance)}; chosen mode"),
    ]


def _format_time_energy(found: RooflineAnalysis, row: int) -> str:
    seconds, joules = float(found.batch_times.total_s[row]), float(found.joules[row])
    return f"{number(1e3 * seconds, 3, 'ms')}, {number(joules, 3, 'J')}"


def _describe_implication(found: RooflineAnalysis) -> str:
    line = found.lines.mode_roofline(found.choice.row)
    return f"{describe_implying_modes(found)} In the chosen one: {describe_implication(line)}"


def _sources_table(found: RooflineAnalysis) -> Table:
    spec, network = found.basis.spec, found.network
    rows = [
        ("constants", describe_constants(found)),
        ("network", f"{network.source}; counted per operator, without fusion, at four bytes per element"),
        ("peak arithmetic", f"{spec.gpu_gflops.value:g} GFLOP/s; {spec.gpu_gflops.label}: {spec.gpu_gflops.source}"),
        ("peak memory", f"{spec.mem_gbps.value:g} GB/s; {spec.mem_gbps.label}: {spec.mem_gbps.source}"),
    ]
    return Table("sources", ("what", "source"), tuple((text_cell(word), text_cell(source)) for word, source in rows))
