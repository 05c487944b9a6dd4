"""A topology search for the terminal and as an HTML page: the variants that fit, other batch sizes, layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from experiments.report.chart import Chart, axis, bar_trace, line_trace, scatter_trace, xy_chart
from experiments.report.page import EMPTY, Card, Section, render_badge, write_page
from experiments.report.palette import ALARM, COLOURS, GREY
from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, number_cell, percent_cell, print_lines, text_cell, value_cell
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
    heads = ("batch", "parameters", "of all", "channels", "GFLOP", "MB", "with margin", "s", "with margin", "ms/sample")
    rows = [
        (*_variant_cells(one, limits), *((text_cell("yes" if one in front else "no"),) if front else ()))
        for one in variants
    ]
    return Table(key, (*heads, *(("on the front",) if front else ())), tuple(rows), title)


def _variant_cells(fit: VariantFit, limits: StepLimits) -> tuple[Cell, ...]:
    variant, need = fit.variant, fit.need
    cautious_mb, cautious_s = limits.memory_with_margin_mb(need), limits.step_with_margin_s(need)
    return (
        value_cell(fit.batch_size),
        number_cell(_format_millions(variant), variant.cost.parameters),
        percent_cell(variant.parameter_share),
        percent_cell(variant.channel_share),
        value_cell(variant.cost.flop / 1e9, ".3g", "GFLOP"),
        value_cell(need.memory_mb, number, "MB"),
        value_cell(cautious_mb, number, "MB"),
        value_cell(need.step_s, number, "s"),
        value_cell(cautious_s, number, "s"),
        value_cell(1e3 * fit.sample_s, number, "ms"),
    )


def layers_table(layers: Sequence[tuple[str, LayerCut]]) -> Table:
    """Build a table of the channels that layers keep."""
    heads = ("layer", "inputs kept", "of", "outputs kept", "of")
    return Table(
        "layers", heads, tuple((text_cell(name), *_channel_cells(cut)) for name, cut in layers), "Channels kept, of all"
    )


def _channel_cells(cut: LayerCut) -> tuple[Cell, ...]:
    inputs, outputs = cut.of or (0, 0)
    kept_in = inputs if cut.inputs is None else len(cut.inputs)
    kept_out = outputs if cut.outputs is None else len(cut.outputs)
    return tuple(value_cell(count) for count in (kept_in, inputs, kept_out, outputs))


def select_layers(variant: NetworkVariant) -> list[tuple[str, LayerCut]]:
    """Return some layers that compute, evenly spaced over the network and in its order."""
    names = [layer.name for layer in variant.cost.layers if layer.name in variant.plan]
    count = min(MAX_LAYERS, len(names))
    places = [round(i * (len(names) - 1) / max(1, count - 1)) for i in range(count)]
    return [(names[place], variant.plan[names[place]]) for place in places]


# Terminal -------------------------------------------------------------------------------------------------------------


def print_topology(console: Console, result: TopologyResult) -> None:
    """Print the whole result."""
    folders, training = result.folders, result.training
    print_lines(console, describe_request(result))
    variants_table("variants", "Variants that fit", result.variants, result.limits).print(console)
    title = "Other batch sizes: non-dominated largest variants that fit"
    variants_table("batches", title, result.front, result.limits).print(console)
    print_lines(console, describe_limitations(result))
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
        f"{percent(variant.parameter_share)} of the parameters ({_format_millions(variant)}), "
        f"{percent(variant.flop_share)} of the FLOP ({variant.cost.flop / 1e9:.3g} GFLOP per sample), "
        f"{percent(variant.channel_share)} of the channels"
    )
    print_lines(console, [f"{variant.model} for samples of {shape}, channels ranked by {variant.method}", shares])
    shown = list(variant.plan.items()) if every_layer else select_layers(variant)
    layers_table(shown).print(console)
    if len(shown) < len(variant.plan):
        print_lines(console, [f"and {len(variant.plan) - len(shown)} more layers (--all)"])


def describe_request(result: TopologyResult) -> list[str]:
    """Describe the request and the needs of the unpruned network."""
    options, limits, whole = result.options, result.limits, result.whole_network
    allowed = [f"{number(limits.memory_mb)} MB ({result.memory_limit_source})"]
    if limits.step_s is not None:
        allowed.append(f"{limits.step_s:g} s per step")
    size = f"{_format_millions(whole.variant)} parameters, {whole.variant.cost.flop / 1e9:.3g} GFLOP per sample"
    request = f"{options.network} on {result.device.name}, training at batch {options.batch_size}"
    confidence = f"each met with {100 * options.confidence:g} % confidence"
    needs = f"{number(whole.need.memory_mb)} MB, {number(whole.need.step_s)} s per step"
    return [
        f"{request} within {' and '.join(allowed)}, {confidence}",
        f"Unpruned: {size}, {needs}: {_verdict(whole)}",
    ]


def describe_limitations(result: TopologyResult) -> list[str]:
    """Describe the layers that cannot be pruned, and the uncertainty of the predictions."""
    reasons = Counter(layer.reason for layer in result.uncut_layers)
    stays = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.items())
    need = result.whole_network.need
    spread = f"memory {100 * need.memory_sd_log:.2g} %, time {100 * need.step_sd_log:.2g} %"
    return [
        f"Not pruned: {stays}." if stays else "Every layer is pruned.",
        f"Predictions are {need.label} ({need.source}); one standard deviation: {spread}.",
        AT_MAXN_NOTE,
    ]


def _format_millions(variant: NetworkVariant) -> str:
    return f"{variant.cost.parameters / 1e6:.3g} M"


def _verdict(fit: VariantFit) -> str:
    return "fits" if fit.fits else "does not fit"


# Page -----------------------------------------------------------------------------------------------------------------


def write_topology_page(result: TopologyResult, out: Path) -> None:
    """Write the page atomically; without a training check it has no section about it."""
    options, need = result.options, result.whole_network.need
    title = f"{options.network} on {result.device.name}: variants that fit"
    facts = (
        f"training at batch {options.batch_size}",
        f"channels ranked by {options.ranking}",
        f"each limit met with {100 * options.confidence:g} % confidence",
    )
    note = Markup("{} Memory and time are predicted ({}); these variants were not measured. {}").format(
        render_badge(need.label), need.source, AT_MAXN_NOTE
    )
    write_page(
        out,
        title,
        _build_sections(result, result.training),
        "Made by fedge topology.",
        facts=facts,
        cards=_list_cards(result),
        notes=(note,),
    )


def _list_cards(result: TopologyResult) -> list[Card]:
    limits, whole, best = result.limits, result.whole_network, result.variants[0]
    memory_mb, whole_mb = limits.memory_with_margin_mb(best.need), limits.memory_with_margin_mb(whole.need)
    allowed_s = "no limit on time" if limits.step_s is None else f"limit {limits.step_s:g} s"
    size = f"{100 * best.variant.parameter_share:.3g} %"
    return [
        Card("Largest that fits", size, f"of {whole.variant.cost.parameters / 1e6:.3g} M parameters"),
        Card("Memory", number(memory_mb, 3, "MB"), f"with margin; limit {number(limits.memory_mb)} MB"),
        Card("Step time", number(limits.step_with_margin_s(best.need), 3, "s"), f"with margin; {allowed_s}"),
        Card("Unpruned network", number(whole_mb, 3, "MB"), f"with margin: {_verdict(whole)}"),
    ]


def _build_sections(result: TopologyResult, training: TrainingCheck | None) -> list[Section]:
    limits, largest = result.limits, result.variants[0]
    uncut = tuple((text_cell(layer.root), text_cell(layer.reason)) for layer in result.uncut_layers)
    is_pruned = bool(largest.variant.plan)
    sections = [
        Section(
            "Memory and time by width",
            "A variant fits if the dashed line, the prediction with margin, is below the limit.",
            (memory_chart(result), time_chart(result)),
            variants_table("variants", "", result.variants, limits).html,
        ),
        Section(
            "Width against batch size",
            "The largest variant that fits at each batch size, by the share of parameters that it keeps.",
            (batch_size_chart(result), sample_time_chart(result)),
            variants_table("batches", "", result.largest_by_batch, limits, front=result.front).html,
        ),
        Section(
            "Layers of the largest variant",
            "Output channels, in the order of the network." if is_pruned else "The unpruned network fits.",
            (layer_width_chart(largest),) if is_pruned else (),
            Table("kept", ("layer", "reason it is not pruned"), uncut).html if uncut else EMPTY,
        ),
    ]
    if training is not None:
        grown = "" if training.grown_mb is None else f" Its memory grew by {number(training.grown_mb)} MB."
        lead = Markup("{}, {} steps of SGD on {} synthetic samples.{} {} on this machine, not on the board.").format(
            largest.variant.name, len(training.losses), training.batch_size, grown, render_badge("measured")
        )
        sections.append(Section("Training test", lead, (loss_chart(training),)))
    return sections


VariantFigure = Callable[[VariantFit], float]


def memory_chart(answer: TopologyResult) -> Chart:
    """Plot predicted memory over the kept share of parameters, with margin and limit."""
    limits, words = answer.limits, ("memory", "Memory", "peak memory above idle (MB)")
    return _need_chart(
        answer,
        words,
        plain=lambda one: one.need.memory_mb,
        cautious=lambda one: limits.memory_with_margin_mb(one.need),
        limit=limits.memory_mb,
    )


def time_chart(answer: TopologyResult) -> Chart:
    """Plot the predicted step time over the kept share of parameters, with margin and limit."""
    limits, words = answer.limits, ("time", "Time", "seconds per step at MAXN")
    return _need_chart(
        answer,
        words,
        plain=lambda one: one.need.step_s,
        cautious=lambda one: limits.step_with_margin_s(one.need),
        limit=limits.step_s,
    )


def _need_chart(
    answer: TopologyResult,
    words: tuple[str, str, str],
    plain: VariantFigure,
    cautious: VariantFigure,
    limit: float | None,
) -> Chart:
    key, title, unit = words
    curve = sorted(
        {_parameter_percent(one): one for one in (*answer.curve, *answer.variants)}.values(), key=_parameter_percent
    )
    shares, texts = [_parameter_percent(one) for one in curve], [_hover_text(one) for one in curve]
    blue, fitting = COLOURS[0], answer.variants
    data = [
        line_trace("predicted", shares, [plain(one) for one in curve], colour=blue, markers=False, hover=texts),
        line_trace(
            "with margin",
            shares,
            [cautious(one) for one in curve],
            colour=blue,
            dash="dash",
            markers=False,
            hover=texts,
        ),
        scatter_trace(
            "variants that fit",
            [_parameter_percent(one) for one in fitting],
            [cautious(one) for one in fitting],
            marker={"symbol": "diamond", "size": 11, "color": COLOURS[2], "line": {"width": 1.5, "color": "white"}},
            hover=[_hover_text(one) for one in fitting],
        ),
    ]
    if limit is not None:
        text = f"limit {limit:,.4g}"
        data.append(line_trace("limit", [0, 102], [limit, limit], colour=ALARM, dash="dot", markers=False, hover=text))
    share, caption = axis("parameters kept (%)", range=[0, 102]), f"Batch {answer.options.batch_size}."
    return xy_chart(key, title, data, xaxis=share, yaxis=axis(unit, rangemode="tozero"), caption=caption, height_px=360)


def _parameter_percent(found: VariantFit) -> float:
    return 100 * found.variant.parameter_share


def _hover_text(found: VariantFit) -> str:
    need, variant = found.need, found.variant
    return (
        f"<b>{_parameter_percent(found):.3g} % of the parameters</b>, batch "
        f"{found.batch_size}<br>{need.memory_mb:,.0f} MB, "
        f"{need.step_s:.3g} s, {1e3 * found.sample_s:.3g} ms per sample<br>"
        f"{variant.cost.flop / 1e9:.3g} GFLOP per sample"
    )


def batch_size_chart(answer: TopologyResult) -> Chart:
    """Plot the size of the largest variant that fits over the batch size."""
    found = answer.largest_by_batch
    bars = bar_trace(
        "parameters kept",
        _batch_size_labels(found),
        [_parameter_percent(one) for one in found],
        colour=[COLOURS[0] if one in answer.front else GREY for one in found],
        hover=[_hover_text(one) for one in found],
    )
    return xy_chart(
        "batches",
        "Largest variant that fits",
        [bars],
        xaxis=axis("batch size", type="category"),
        yaxis=axis("parameters kept (%)", range=[0, 104]),
        caption="Grey: dominated in network size, batch size and time per sample.",
    )


def sample_time_chart(answer: TopologyResult) -> Chart:
    """Plot the time per sample of the largest variant that fits over the batch size."""
    found = answer.largest_by_batch
    line = line_trace(
        "time per sample",
        _batch_size_labels(found),
        [1e3 * one.sample_s for one in found],
        colour=COLOURS[1],
        hover=[_hover_text(one) for one in found],
    )
    batch, time = axis("batch size", type="category"), axis("ms per sample at MAXN", rangemode="tozero")
    return xy_chart("sample", "Time per sample", [line], xaxis=batch, yaxis=time)


def _batch_size_labels(found: Sequence[VariantFit]) -> list[str]:
    return [str(one.batch_size) for one in found]


def layer_width_chart(found: VariantFit) -> Chart:
    """Plot the output channels of every pruned layer, kept and original."""
    plan = found.variant.plan
    cuts = [(layer.name, plan[layer.name]) for layer in found.variant.cost.layers if layer.name in plan]
    cuts = [(name, one) for name, one in cuts if one.outputs is not None and one.of is not None]
    names = [name for name, _ in cuts]
    kept = [len(one.outputs or ()) for _, one in cuts]
    gone = [(one.of or (0, 0))[1] - stays for (_, one), stays in zip(cuts, kept, strict=True)]
    data = [
        bar_trace(name, names, counts, colour=colour, hover=f"%{{x}}: %{{y}} {name}")
        for name, counts, colour in (("kept", kept, COLOURS[0]), ("removed", gone, "rgba(128,138,150,0.35)"))
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


def loss_chart(trained: TrainingCheck) -> Chart:
    """Plot the loss of every step."""
    steps = list(range(1, len(trained.losses) + 1))
    data = [line_trace("loss", steps, trained.losses, colour=COLOURS[0], hover="step %{x}: %{y:.4g}")]
    return xy_chart(
        "loss", "Loss on the same samples", data, xaxis=axis("step", dtick=1), yaxis=axis("loss"), height_px=260
    )
