"""A topology search for the terminal and as an HTML page: the variants that fit, other batch sizes, layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from experiments.report.chart import ALARM, COLOURS, GREY, Chart, axis, bar_trace, line_trace, scatter_trace, xy_chart
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.quantities import number, percent
from experiments.report.tables import Column, Table, build_table, percent_cell, print_lines, text_cell, value_cell
from fedge.analysis.topology.channel_plan import NetworkVariant
from fedge.analysis.topology.topology_result import StepLimits, VariantFit
from fedge.analysis.topology.variant_files import TrainingCheck
from fedge.worker.channel_cuts import LayerCut

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.analysis.topology.topology_result import TopologyResult


MAX_LAYERS = 12
"""Number of a variant's layers shown unless all are requested."""
AT_MAXN_NOTE = "Times are at MAXN, the power mode in which the tables behind the prediction were measured."


# Tables ---------------------------------------------------------------------------------------------------------------


def variants_table(
    key: str, title: str, variants: Sequence[VariantFit], limits: StepLimits, front: Sequence[VariantFit] = ()
) -> Table:
    """Build a table of variants; with a ``front``, a column says which variants are on it."""
    columns: tuple[Column[VariantFit], ...] = (
        ("batch", lambda one: value_cell(one.batch_size)),
        ("parameters", lambda one: value_cell(one.variant.cost.parameters, _format_millions)),
        ("of all", lambda one: percent_cell(one.variant.parameter_share)),
        ("channels", lambda one: percent_cell(one.variant.channel_share)),
        ("GFLOP", lambda one: value_cell(one.variant.cost.flop / 1e9, ".3g", "GFLOP")),
        ("MB", lambda one: value_cell(one.need.memory_mb, number, "MB")),
        ("with margin", lambda one: value_cell(limits.memory_with_margin_mb(one.need), number, "MB")),
        ("s", lambda one: value_cell(one.need.step_s, number, "s")),
        ("with margin", lambda one: value_cell(limits.step_with_margin_s(one.need), number, "s")),
        ("ms/sample", lambda one: value_cell(1e3 * one.sample_s, number, "ms")),
    )
    if front:
        columns += (("on the front", lambda one: text_cell("yes" if one in front else "no")),)
    return build_table(key, columns, variants, title)


def layers_table(layers: Sequence[tuple[str, LayerCut]]) -> Table:
    """Build a table of the channels that layers keep."""
    rows = []
    for name, cut in layers:
        inputs, outputs = cut.of or (0, 0)
        kept_in = inputs if cut.inputs is None else len(cut.inputs)
        kept_out = outputs if cut.outputs is None else len(cut.outputs)
        rows.append((text_cell(name), *map(value_cell, (kept_in, inputs, kept_out, outputs))))
    return Table("layers", ("layer", "inputs kept", "of", "outputs kept", "of"), tuple(rows), "Channels kept, of all")


# Terminal -------------------------------------------------------------------------------------------------------------


def print_topology(console: Console, result: TopologyResult) -> None:
    """Print the whole result."""
    folders, training = result.folders, result.training
    print_lines(console, _describe_request(result))
    variants_table("variants", "Variants that fit", result.variants, result.limits).print(console)
    title = "Other batch sizes: non-dominated largest variants that fit"
    variants_table("batches", title, result.front, result.limits).print(console)
    print_lines(console, _describe_limitations(result))
    if folders:
        print_lines(console, [f"Written: {', '.join(str(folder) for folder in folders)}"])
    if training is not None:
        name = result.variants[0].variant.name
        grown = "" if training.grown_mb is None else f"; its memory grew by {number(training.grown_mb)} MB"
        losses = f"{training.losses[0]:.4g} -> {training.losses[-1]:.4g}"
        steps = f"{len(training.losses)} steps of {training.batch_size} synthetic samples"
        where = "measured on this machine, not on the board"
        print_lines(console, [f"Trained {name} for {steps}: loss {losses}{grown} ({where})"])


def print_variant(console: Console, variant: NetworkVariant, *, every_layer: bool) -> None:
    """Print a variant with some of its layers, or with all."""
    shape = "x".join(map(str, variant.input_shape))
    shares = (
        f"{percent(variant.parameter_share)} of the parameters ({_format_millions(variant.cost.parameters)}), "
        f"{percent(variant.flop_share)} of the FLOP ({variant.cost.flop / 1e9:.3g} GFLOP per sample), "
        f"{percent(variant.channel_share)} of the channels"
    )
    print_lines(console, [f"{variant.model} for samples of {shape}, channels ranked by {variant.method}", shares])
    # Some layers that compute, evenly spaced over the network and in its order.
    names = [layer.name for layer in variant.cost.layers if layer.name in variant.plan]
    last, count = len(names) - 1, min(MAX_LAYERS, len(names))
    some = [names[round(i * last / max(1, count - 1))] for i in range(count)]
    shown = [(name, variant.plan[name]) for name in (variant.plan if every_layer else some)]
    layers_table(shown).print(console)
    if len(shown) < len(variant.plan):
        print_lines(console, [f"and {len(variant.plan) - len(shown)} more layers (--all)"])


def _describe_request(result: TopologyResult) -> Iterator[str]:
    options, limits, whole = result.options, result.limits, result.whole_network
    within = f"within {number(limits.memory_mb)} MB ({result.memory_limit_source})"
    if limits.step_s is not None:
        within += f" and {limits.step_s:g} s per step"
    request = f"{options.network} on {result.device.name}, training at batch {options.batch_size}"
    yield f"{request} {within}, each met with {100 * options.confidence:g} % confidence"
    cost = whole.variant.cost
    size = f"{_format_millions(cost.parameters)} parameters, {cost.flop / 1e9:.3g} GFLOP per sample"
    needs = f"{number(whole.need.memory_mb)} MB, {number(whole.need.step_s)} s per step"
    yield f"Unpruned: {size}, {needs}: {_format_verdict(whole)}"


def _describe_limitations(result: TopologyResult) -> Iterator[str]:
    reasons = Counter(layer.reason for layer in result.uncut_layers)
    stays = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.items())
    yield f"Not pruned: {stays}." if stays else "Every layer is pruned."
    need = result.whole_network.need
    spread = f"memory {100 * need.memory_sd_log:.2g} %, time {100 * need.step_sd_log:.2g} %"
    yield f"Predictions are {need.label} ({need.source}); one standard deviation: {spread}."
    yield AT_MAXN_NOTE


def _format_millions(count: float) -> str:
    return f"{count / 1e6:.3g} M"


def _format_verdict(fit: VariantFit) -> str:
    return "fits" if fit.fits else "does not fit"


# Page -----------------------------------------------------------------------------------------------------------------


def write_topology_page(result: TopologyResult, out: Path) -> None:
    """Write the page atomically; without a training check it has no section about it."""
    options, need = result.options, result.whole_network.need
    note = Markup("{} Memory and time are predicted ({}); these variants were not measured. {}")
    write_page(
        out,
        f"{options.network} on {result.device.name}: variants that fit",
        _build_sections(result, result.training),
        "Made by fedge topology.",
        facts=(
            f"training at batch {options.batch_size}",
            f"channels ranked by {options.ranking}",
            f"each limit met with {100 * options.confidence:g} % confidence",
        ),
        cards=_list_cards(result),
        notes=(note.format(render_badge(need.label), need.source, AT_MAXN_NOTE),),
    )


def _list_cards(result: TopologyResult) -> Iterator[Card]:
    limits, whole, best = result.limits, result.whole_network, result.variants[0]
    memory_mb, whole_mb = limits.memory_with_margin_mb(best.need), limits.memory_with_margin_mb(whole.need)
    allowed_s = "no limit on time" if limits.step_s is None else f"limit {limits.step_s:g} s"
    yield Card(
        "Largest that fits",
        f"{100 * best.variant.parameter_share:.3g} %",
        f"of {_format_millions(whole.variant.cost.parameters)} parameters",
    )
    yield Card("Memory", number(memory_mb, 3, "MB"), f"with margin; limit {number(limits.memory_mb)} MB")
    yield Card("Step time", number(limits.step_with_margin_s(best.need), 3, "s"), f"with margin; {allowed_s}")
    yield Card("Unpruned network", number(whole_mb, 3, "MB"), f"with margin: {_format_verdict(whole)}")


def _build_sections(result: TopologyResult, training: TrainingCheck | None) -> Iterator[Section]:
    limits, largest = result.limits, result.variants[0]
    yield Section(
        "Memory and time by width",
        "A variant fits if the dashed line, the prediction with margin, is below the limit.",
        (
            _need_chart(
                result,
                "memory",
                "Memory",
                "peak memory above idle (MB)",
                plain=lambda one: one.need.memory_mb,
                cautious=lambda one: limits.memory_with_margin_mb(one.need),
                limit=limits.memory_mb,
            ),
            _need_chart(
                result,
                "time",
                "Time",
                "seconds per step at MAXN",
                plain=lambda one: one.need.step_s,
                cautious=lambda one: limits.step_with_margin_s(one.need),
                limit=limits.step_s,
            ),
        ),
        variants_table("variants", "", result.variants, limits).html,
    )
    yield Section(
        "Width against batch size",
        "The largest variant that fits at each batch size, by the share of parameters that it keeps.",
        _batch_size_charts(result),
        variants_table("batches", "", result.largest_by_batch, limits, front=result.front).html,
    )
    uncut = tuple((text_cell(layer.root), text_cell(layer.reason)) for layer in result.uncut_layers)
    is_pruned = bool(largest.variant.plan)
    yield Section(
        "Layers of the largest variant",
        "Output channels, in the order of the network." if is_pruned else "The unpruned network fits.",
        (_layer_width_chart(largest),) if is_pruned else (),
        Table("kept", ("layer", "reason it is not pruned"), uncut).html,
    )
    if training is not None:
        yield _training_section(largest.variant, training)


def _training_section(variant: NetworkVariant, training: TrainingCheck) -> Section:
    grown = "" if training.grown_mb is None else f" Its memory grew by {number(training.grown_mb)} MB."
    lead = Markup("{}, {} steps of SGD on {} synthetic samples.{} {} on this machine, not on the board.").format(
        variant.name, len(training.losses), training.batch_size, grown, render_badge("measured")
    )
    steps, hover = list(range(1, len(training.losses) + 1)), "step %{x}: %{y:.4g}"
    data = [line_trace("loss", steps, training.losses, colour=COLOURS[0], hover=hover)]
    at, loss = axis("step", dtick=1), axis("loss")
    chart = xy_chart("loss", "Loss on the same samples", data, xaxis=at, yaxis=loss, height_px=260)
    return Section("Training test", lead, (chart,))


def _need_chart(
    result: TopologyResult,
    key: str,
    title: str,
    unit: str,
    *,
    plain: Callable[[VariantFit], float],
    cautious: Callable[[VariantFit], float],
    limit: float | None,
) -> Chart:
    by_share = {_parameter_percent(one): one for one in (*result.curve, *result.variants)}
    curve = [by_share[share] for share in sorted(by_share)]
    along: dict[str, Any] = {"x": _parameter_percent, "hover": _hover_text}
    line: dict[str, Any] = {"of": curve, **along, "colour": COLOURS[0], "markers": False}
    marker = {"symbol": "diamond", "size": 11, "color": COLOURS[2], "line": {"width": 1.5, "color": "white"}}
    data = [
        line_trace("predicted", y=plain, **line),
        line_trace("with margin", y=cautious, dash="dash", **line),
        scatter_trace("variants that fit", of=result.variants, **along, y=cautious, marker=marker),
    ]
    if limit is not None:
        text = f"limit {limit:,.4g}"
        data.append(line_trace("limit", [0, 102], [limit, limit], colour=ALARM, dash="dot", markers=False, hover=text))
    share, caption = axis("parameters kept (%)", range=[0, 102]), f"Batch {result.options.batch_size}."
    return xy_chart(key, title, data, xaxis=share, yaxis=axis(unit, rangemode="tozero"), caption=caption, height_px=360)


def _parameter_percent(found: VariantFit) -> float:
    return 100 * found.variant.parameter_share


def _hover_text(found: VariantFit) -> str:
    need, variant = found.need, found.variant
    return Markup(
        "<b>{:.3g} % of the parameters</b>, batch {}<br>{:,.0f} MB, {:.3g} s, {:.3g} ms per sample<br>"
        "{:.3g} GFLOP per sample"
    ).format(
        _parameter_percent(found),
        found.batch_size,
        need.memory_mb,
        need.step_s,
        1e3 * found.sample_s,
        variant.cost.flop / 1e9,
    )


def _batch_size_charts(result: TopologyResult) -> tuple[Chart, Chart]:
    found, batch = result.largest_by_batch, axis("batch size", type="category")
    labels = [str(one.batch_size) for one in found]
    colours = [COLOURS[0] if one in result.front else GREY for one in found]
    bars = bar_trace("parameters kept", labels, _parameter_percent, of=found, colour=colours, hover=_hover_text)
    line = line_trace(
        "time per sample", labels, lambda one: 1e3 * one.sample_s, of=found, colour=COLOURS[1], hover=_hover_text
    )
    time = axis("ms per sample at MAXN", rangemode="tozero")
    return (
        xy_chart(
            "batches",
            "Largest variant that fits",
            [bars],
            xaxis=batch,
            yaxis=axis("parameters kept (%)", range=[0, 104]),
            caption="Grey: dominated in network size, batch size and time per sample.",
        ),
        xy_chart("sample", "Time per sample", [line], xaxis=batch, yaxis=time),
    )


def _layer_width_chart(found: VariantFit) -> Chart:
    plan = found.variant.plan
    cuts = [(layer.name, plan[layer.name]) for layer in found.variant.cost.layers if layer.name in plan]
    kept = {name: (len(cut.outputs), cut.of[1]) for name, cut in cuts if cut.outputs is not None and cut.of is not None}
    data = [
        bar_trace(name, list(kept), counts, colour=colour, hover=f"%{{x}}: %{{y}} {name}")
        for name, counts, colour in (
            ("kept", [stays for stays, _ in kept.values()], COLOURS[0]),
            ("removed", [all_ - stays for stays, all_ in kept.values()], "rgba(128,138,150,0.35)"),
        )
    ]
    return xy_chart(
        "layers",
        f"{_parameter_percent(found):.3g} % of the parameters",
        data,
        xaxis=axis("layer", showticklabels=False, showgrid=False),
        yaxis=axis("output channels"),
        caption="Layers that are not pruned are omitted.",
        barmode="stack",
        bargap=0.1,
    )
