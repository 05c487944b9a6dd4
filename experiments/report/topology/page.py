"""Writes a search as one HTML file: need over width and limits, the front over batch sizes, the layers' widths."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.report.cards import cards
from experiments.report.cells import Cell, badge, figure, table, text
from experiments.report.chart import Section
from experiments.report.page import html_page
from experiments.report.quantities import number
from experiments.report.topology import charts, terminal
from fedge.telemetry import run_folder
from fedge.topology.search import Found, Limits
from fedge.topology.training import Trained

if TYPE_CHECKING:
    from experiments.commands.topology import Answer


def write(answer: Answer, trained: Trained | None, out: Path) -> None:
    """Write the page, replacing ``out`` as a whole."""
    asked = answer.asked
    title = escape(f"{asked.model} on {answer.device.name}: variants that fit")
    foot = "Made by fedge topology."
    run_folder.write_text(out, html_page(title, _head(answer, title), _sections(answer, trained), foot))


def _head(answer: Answer, title: str) -> str:
    asked, need = answer.asked, answer.whole.need
    facts = (
        f"training at batch {asked.batch_size}",
        f"channels ranked by {escape(asked.method)}",
        f"each limit held with {100 * asked.confidence:g} % confidence",
    )
    return (
        f"<h1>{title}</h1><p class='soft'>{' · '.join(facts)}</p>{cards(_cards(answer))}"
        f"<p>{badge(need.label)} Every need is predicted ({escape(need.source)}), none was measured with these "
        f"variants. {escape(terminal.AT_MAXN)}</p>"
    )


def _cards(answer: Answer) -> list[tuple[str, str, str]]:
    limits, whole, best = answer.limits, answer.whole, answer.variants[0]
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


def _sections(answer: Answer, trained: Trained | None) -> list[Section]:
    limits = answer.limits
    reasons = [[text(one.root), text(one.reason)] for one in answer.kept]
    kept = table(("layer", "why it is not cut"), reasons, "kept") if reasons else ""
    return [
        Section(
            "What a width needs",
            "A variant fits where the dashed line, the prediction with its margin, is below the limit.",
            (charts.memory_chart(answer), charts.time_chart(answer)),
            _found_table(answer.variants, limits, "variants"),
        ),
        Section(
            "Width against batch size",
            "The largest variant that fits at each batch size. What is kept of the parameters stands for what the "
            "network can learn.",
            (charts.batches_chart(answer), charts.sample_chart(answer)),
            _found_table(answer.over_batches, limits, "batches", answer.front),
        ),
        Section(
            "Layers of the largest variant",
            "Output channels, in the order of the network."
            if answer.variants[0].variant.plan
            else "The whole network fits.",
            (charts.layers_chart(answer.variants[0]),) if answer.variants[0].variant.plan else (),
            kept,
        ),
        *_training(answer, trained),
    ]


def _found_table(found: Sequence[Found], limits: Limits, key: str, best: Sequence[Found] = ()) -> str:
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
    rows = [[*_cells(one, limits), *([text("yes" if one in best else "")] if best else [])] for one in found]
    return table(heads, rows, key)


def _cells(found: Found, limits: Limits) -> list[Cell]:
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
    return [figure(one) for one in shown]


def _training(answer: Answer, trained: Trained | None) -> list[Section]:
    if trained is None:
        return []
    grown = "" if trained.grown_mb is None else f" Its memory grew by {number(trained.grown_mb)} MB."
    lead = (
        f"{escape(answer.variants[0].variant.name)}, {len(trained.losses)} steps of SGD on {trained.batch_size} "
        f"made-up samples.{grown} {badge('measured')} on this machine, not on the board."
    )
    return [Section("Does it train?", lead, (charts.loss_chart(trained),))]
