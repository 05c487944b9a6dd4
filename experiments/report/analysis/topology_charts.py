"""Charts of a search for smaller networks: memory and time over width, batch sizes, layers, training loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from experiments.report.chart import LEGEND, Chart, axis, bar_trace, line_trace, scatter_trace, xy_layout
from experiments.report.palette import ALARM, COLOURS, GREY
from fedge.analysis.topology.topology_result import VariantFit
from fedge.analysis.topology.variant_files import TrainingCheck

if TYPE_CHECKING:
    from fedge.analysis.topology.topology_result import TopologyResult

VariantFigure = Callable[[VariantFit], float]


def memory_chart(answer: TopologyResult) -> Chart:
    """Plot predicted memory over the kept share of parameters, with margin and limit."""
    limits = answer.limits
    return _need_chart(
        answer,
        words=("memory", "Memory", "peak memory above idle (MB)"),
        plain=lambda one: one.need.memory_mb,
        cautious=lambda one: limits.memory_with_margin_mb(one.need),
        limit=limits.memory_mb,
    )


def time_chart(answer: TopologyResult) -> Chart:
    """Plot the predicted step time over the kept share of parameters, with margin and limit."""
    limits = answer.limits
    return _need_chart(
        answer,
        words=("time", "Time", "seconds per step at MAXN"),
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
    layout = xy_layout(axis("parameters kept (%)", range=[0, 102]), axis(unit, rangemode="tozero"))
    return Chart(key, title, f"Batch {answer.options.batch_size}.", data, layout=layout, height_px=360)


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
    layout = {
        "xaxis": axis("batch size", type="category"),
        "yaxis": axis("parameters kept (%)", range=[0, 104]),
        "showlegend": False,
        "hovermode": "closest",
    }
    caption = "Grey: dominated in network size, batch size and time per sample."
    return Chart("batches", "Largest variant that fits", caption, [bars], layout=layout, height_px=320)


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
    layout = {
        "xaxis": axis("batch size", type="category"),
        "yaxis": axis("ms per sample at MAXN", rangemode="tozero"),
        "showlegend": False,
        "hovermode": "closest",
    }
    return Chart("sample", "Time per sample", "", [line], layout=layout, height_px=320)


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
    layout = {
        "barmode": "stack",
        "bargap": 0.1,
        "xaxis": axis("layer", showticklabels=False, showgrid=False),
        "yaxis": axis("output channels"),
        "legend": LEGEND,
    }
    caption = "Layers that are not pruned are omitted."
    return Chart(
        "layers", f"{_parameter_percent(found):.3g} % of the parameters", caption, data, layout=layout, height_px=320
    )


def loss_chart(trained: TrainingCheck) -> Chart:
    """Plot the loss of every step."""
    steps = list(range(1, len(trained.losses) + 1))
    data = [line_trace("loss", steps, trained.losses, colour=COLOURS[0], hover="step %{x}: %{y:.4g}")]
    layout = {"xaxis": axis("step", dtick=1), "yaxis": axis("loss"), "showlegend": False}
    return Chart("loss", "Loss on the same samples", "", data, layout=layout, height_px=260)
