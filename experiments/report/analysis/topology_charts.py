"""Charts of a search for smaller networks: memory and time over width, batch sizes, layers, training loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from experiments.report.chart import LEGEND, Chart, Trace, axis
from experiments.report.palette import ALARM, COLOURS, GREY
from fedge.analysis.topology.variant_search import VariantFit
from fedge.analysis.topology.variant_training import TrainingCheck

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
        words=("time", "Time", "seconds per minibatch at MAXN"),
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
    data = [
        _line_trace("predicted", curve, plain, {"color": COLOURS[0], "width": 2}),
        _line_trace("with the margin", curve, cautious, {"color": COLOURS[0], "width": 1.5, "dash": "dash"}),
        _marker_trace("variants that fit", answer.variants, cautious),
    ]
    if limit is not None:
        data.append(_limit_trace(limit))
    layout = {
        "xaxis": axis("parameters kept (%)", range=[0, 102]),
        "yaxis": axis(unit, rangemode="tozero"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return Chart(
        key, title=title, caption=f"Batch {answer.options.batch_size}.", data=data, layout=layout, height_px=360
    )


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


def _line_trace(name: str, found: Sequence[VariantFit], figure: VariantFigure, line: dict[str, Any]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_parameter_percent(one) for one in found],
        "y": [figure(one) for one in found],
        "line": line,
        "hovertext": [_hover_text(one) for one in found],
        "hoverinfo": "text",
    }


def _marker_trace(name: str, found: Sequence[VariantFit], figure: VariantFigure) -> Trace:
    marker = {"symbol": "diamond", "size": 11, "color": COLOURS[2], "line": {"width": 1.5, "color": "white"}}
    return {**_line_trace(name, found, figure, {}), "mode": "markers", "marker": marker}


def _limit_trace(limit: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "limit",
        "x": [0, 102],
        "y": [limit, limit],
        "line": {"color": ALARM, "width": 1.5, "dash": "dot"},
        "hovertemplate": f"limit {limit:,.4g}<extra></extra>",
    }


def batch_size_chart(answer: TopologyResult) -> Chart:
    """Plot the size of the largest variant that fits over the batch size."""
    found = answer.largest_by_batch
    bars = {
        "type": "bar",
        "name": "parameters kept",
        "x": _batch_size_labels(found),
        "y": [_parameter_percent(one) for one in found],
        "marker": {"color": [COLOURS[0] if one in answer.front else GREY for one in found]},
        "hovertext": [_hover_text(one) for one in found],
        "hoverinfo": "text",
    }
    layout = {
        "xaxis": axis("batch size", type="category"),
        "yaxis": axis("parameters kept (%)", range=[0, 104]),
        "showlegend": False,
        "hovermode": "closest",
    }
    caption = (
        "Grey: another one is as large a network, at as large a batch size, as quick per sample, and better in one."
    )
    return Chart(
        "batches", title="Largest variant that fits", caption=caption, data=[bars], layout=layout, height_px=320
    )


def sample_time_chart(answer: TopologyResult) -> Chart:
    """Plot the time per sample of the largest variant that fits over the batch size."""
    found = answer.largest_by_batch
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "time per sample",
        "x": _batch_size_labels(found),
        "y": [1e3 * one.sample_s for one in found],
        "line": {"color": COLOURS[1], "width": 2},
        "marker": {"size": 7},
        "hovertext": [_hover_text(one) for one in found],
        "hoverinfo": "text",
    }
    layout = {
        "xaxis": axis("batch size", type="category"),
        "yaxis": axis("ms per sample at MAXN", rangemode="tozero"),
        "showlegend": False,
        "hovermode": "closest",
    }
    return Chart("sample", title="Its time per sample", caption="", data=[line], layout=layout, height_px=320)


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
    data = [_bar_trace("stay", names, kept, COLOURS[0]), _bar_trace("removed", names, gone, "rgba(128,138,150,0.35)")]
    layout = {
        "barmode": "stack",
        "bargap": 0.1,
        "xaxis": axis("layer", showticklabels=False, showgrid=False),
        "yaxis": axis("output channels"),
        "legend": LEGEND,
    }
    caption = "Layers that are not cut are left out."
    return Chart(
        "layers",
        title=f"{_parameter_percent(found):.3g} % of the parameters",
        caption=caption,
        data=data,
        layout=layout,
        height_px=320,
    )


def _bar_trace(name: str, layers: Sequence[str], counts: Sequence[int], colour: str) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "x": list(layers),
        "y": list(counts),
        "marker": {"color": colour},
        "hovertemplate": f"%{{x}}: %{{y}} {name}<extra></extra>",
    }


def loss_chart(trained: TrainingCheck) -> Chart:
    """Plot the loss of every step."""
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "loss",
            "x": list(range(1, len(trained.losses) + 1)),
            "y": list(trained.losses),
            "line": {"color": COLOURS[0], "width": 2},
        }
    ]
    layout = {"xaxis": axis("step", dtick=1), "yaxis": axis("loss"), "showlegend": False}
    return Chart("loss", title="Loss on the same samples", caption="", data=data, layout=layout, height_px=260)
