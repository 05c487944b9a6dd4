"""Writes a topology search as one HTML file: needs over width, variants over batch sizes, layer widths."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.analysis import topology_charts, topology_terminal
from experiments.report.chart import Section
from experiments.report.html_elements import TableCell, label_badge, number_cell, render_cards, render_table, text_cell
from experiments.report.quantities import number
from experiments.report.run.run_page import render_page
from fedge.analysis.topology.variant_search import StepLimits, VariantFit
from fedge.analysis.topology.variant_training import TrainingCheck
from fedge.telemetry import run_folder

if TYPE_CHECKING:
    from fedge.analysis.topology.topology_result import TopologyResult


def write_topology_page(answer: TopologyResult, trained: TrainingCheck | None, out: Path) -> None:
    """Write the page atomically; the training section is omitted if ``trained`` is None."""
    asked = answer.options
    title = escape(f"{asked.model} on {answer.device.name}: variants that fit")
    foot = "Made by fedge topology."
    run_folder.write_text(out, render_page(title, _render_head(answer, title), _build_sections(answer, trained), foot))


def _render_head(answer: TopologyResult, title: str) -> str:
    asked, need = answer.options, answer.whole_network.need
    facts = (
        f"training at batch {asked.batch_size}",
        f"channels ranked by {escape(asked.method)}",
        f"each limit held with {100 * asked.confidence:g} % confidence",
    )
    return (
        f"<h1>{title}</h1><p class='soft'>{' · '.join(facts)}</p>{render_cards(_list_cards(answer))}"
        f"<p>{label_badge(need.label)} Every need is predicted ({escape(need.source)}), none was measured with these "
        f"variants. {escape(topology_terminal.AT_MAXN_NOTE)}</p>"
    )


def _list_cards(answer: TopologyResult) -> list[tuple[str, str, str]]:
    limits, whole, best = answer.limits, answer.whole_network, answer.variants[0]
    memory_mb, whole_mb = limits.memory_with_margin_mb(best.need), limits.memory_with_margin_mb(whole.need)
    step_s = limits.step_with_margin_s(best.need)
    allowed_s = "no limit on time" if limits.step_s is None else f"{limits.step_s:g} s allowed"
    verdict = "fits" if whole.fits else "does not fit"
    return [
        (
            "Largest that fits",
            f"{100 * best.variant.parameter_share:.3g} %",
            f"of {whole.variant.cost.parameters / 1e6:.3g} M parameters",
        ),
        ("Its memory", number(memory_mb, 3, "MB"), f"with the margin; {number(limits.memory_mb)} MB allowed"),
        ("Its minibatch", number(step_s, 3, "s"), f"with the margin; {allowed_s}"),
        ("The whole network", number(whole_mb, 3, "MB"), f"with the margin: {verdict}"),
    ]


def _build_sections(answer: TopologyResult, trained: TrainingCheck | None) -> list[Section]:
    limits = answer.limits
    reasons = [[text_cell(one.root), text_cell(one.reason)] for one in answer.uncut_layers]
    kept = render_table(("layer", "why it is not cut"), reasons, "kept") if reasons else ""
    return [
        Section(
            "What a width needs",
            "A variant fits where the dashed line, the prediction with its margin, is below the limit.",
            (topology_charts.memory_chart(answer), topology_charts.time_chart(answer)),
            _variants_table(answer.variants, limits, "variants"),
        ),
        Section(
            "Width against batch size",
            "The largest variant that fits at each batch size. What is kept of the parameters stands for what the "
            "network can learn.",
            (topology_charts.batch_size_chart(answer), topology_charts.sample_time_chart(answer)),
            _variants_table(answer.largest_by_batch, limits, "batches", answer.front),
        ),
        Section(
            "Layers of the largest variant",
            "Output channels, in the order of the network."
            if answer.variants[0].variant.plan
            else "The whole network fits.",
            (topology_charts.layer_width_chart(answer.variants[0]),) if answer.variants[0].variant.plan else (),
            kept,
        ),
        *_training_sections(answer, trained),
    ]


def _variants_table(found: Sequence[VariantFit], limits: StepLimits, key: str, best: Sequence[VariantFit] = ()) -> str:
    heads = (
        "batch",
        "parameters",
        "of them, %",
        "channels, %",
        "GFLOP per sample",
        "memory, MB",
        "with margin, MB",
        "minibatch, s",
        "with margin, s",
        "ms per sample",
        *(("not beaten",) if best else ()),
    )
    rows = [[*_variant_row(one, limits), *([text_cell("yes" if one in best else "")] if best else [])] for one in found]
    return render_table(heads, rows, key)


def _variant_row(found: VariantFit, limits: StepLimits) -> list[TableCell]:
    variant, need = found.variant, found.need
    shown = (
        str(found.batch_size),
        f"{variant.cost.parameters:,}",
        f"{100 * variant.parameter_share:.1f}",
        f"{100 * variant.channel_share:.1f}",
        f"{variant.cost.flop / 1e9:.3g}",
        number(need.memory_mb),
        number(limits.memory_with_margin_mb(need)),
        number(need.step_s),
        number(limits.step_with_margin_s(need)),
        number(1e3 * found.sample_s),
    )
    return [number_cell(one) for one in shown]


def _training_sections(answer: TopologyResult, trained: TrainingCheck | None) -> list[Section]:
    if trained is None:
        return []
    grown = "" if trained.grown_mb is None else f" Its memory grew by {number(trained.grown_mb)} MB."
    lead = (
        f"{escape(answer.variants[0].variant.name)}, {len(trained.losses)} steps of SGD on {trained.batch_size} "
        f"made-up samples.{grown} {label_badge('measured')} on this machine, not on the board."
    )
    return [Section("Does it train?", lead, (topology_charts.loss_chart(trained),))]
