"""The pictures of a search for smaller networks: memory and time over width, batch sizes, layers, a loss; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from experiments.report.chart import LEGEND, Chart, Trace, axis
from experiments.report.palette import ALARM, COLOURS, GREY
from fedge.topology.search import Found
from fedge.topology.training import Trained

if TYPE_CHECKING:
    from experiments.commands.topology import Answer

Figure = Callable[[Found], float]


def memory_chart(answer: Answer) -> Chart:
    """Predicted memory over what is kept, with the margin and the limit."""
    limits = answer.limits
    return _need_chart(
        answer,
        ("memory", "Memory", "peak memory above idle (MB)"),
        lambda one: one.need.memory_mb,
        lambda one: limits.memory_with_margin_mb(one.need),
        limits.memory_mb,
    )


def time_chart(answer: Answer) -> Chart:
    """Predicted time of a minibatch over what is kept, with the margin and the limit."""
    limits = answer.limits
    return _need_chart(
        answer,
        ("time", "Time", "seconds per minibatch at MAXN"),
        lambda one: one.need.step_s,
        lambda one: limits.step_with_margin_s(one.need),
        limits.step_s,
    )


def _need_chart(
    answer: Answer, words: tuple[str, str, str], plain: Figure, cautious: Figure, limit: float | None
) -> Chart:
    key, title, unit = words
    curve = sorted({_share(one): one for one in (*answer.curve, *answer.variants)}.values(), key=_share)
    data = [
        _line("predicted", curve, plain, {"color": COLOURS[0], "width": 2}),
        _line("with the margin", curve, cautious, {"color": COLOURS[0], "width": 1.5, "dash": "dash"}),
        _marks("variants that fit", answer.variants, cautious),
    ]
    if limit is not None:
        data.append(_limit(limit))
    layout = {
        "xaxis": axis("parameters kept (%)", range=[0, 102]),
        "yaxis": axis(unit, rangemode="tozero"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return Chart(key, title, f"Batch {answer.asked.batch_size}.", data, layout, 360)


def _share(found: Found) -> float:
    return 100 * found.variant.parameter_share


def _told(found: Found) -> str:
    need, variant = found.need, found.variant
    return (
        f"<b>{_share(found):.3g} % of the parameters</b>, batch {found.batch_size}<br>{need.memory_mb:,.0f} MB, "
        f"{need.step_s:.3g} s, {1e3 * found.sample_s:.3g} ms per sample<br>"
        f"{variant.cost.flop / 1e9:.3g} GFLOP per sample"
    )


def _line(name: str, found: Sequence[Found], figure: Figure, line: dict[str, Any]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_share(one) for one in found],
        "y": [figure(one) for one in found],
        "line": line,
        "hovertext": [_told(one) for one in found],
        "hoverinfo": "text",
    }


def _marks(name: str, found: Sequence[Found], figure: Figure) -> Trace:
    marker = {"symbol": "diamond", "size": 11, "color": COLOURS[2], "line": {"width": 1.5, "color": "white"}}
    return {**_line(name, found, figure, {}), "mode": "markers", "marker": marker}


def _limit(limit: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "limit",
        "x": [0, 102],
        "y": [limit, limit],
        "line": {"color": ALARM, "width": 1.5, "dash": "dot"},
        "hovertemplate": f"limit {limit:,.4g}<extra></extra>",
    }


def batches_chart(answer: Answer) -> Chart:
    """The largest variant that fits over batch size."""
    found = answer.over_batches
    bars = {
        "type": "bar",
        "name": "parameters kept",
        "x": _sizes(found),
        "y": [_share(one) for one in found],
        "marker": {"color": [COLOURS[0] if one in answer.front else GREY for one in found]},
        "hovertext": [_told(one) for one in found],
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
    return Chart("batches", "Largest variant that fits", caption, [bars], layout, 320)


def sample_chart(answer: Answer) -> Chart:
    """Time per sample of the largest variant that fits, over batch size."""
    found = answer.over_batches
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "time per sample",
        "x": _sizes(found),
        "y": [1e3 * one.sample_s for one in found],
        "line": {"color": COLOURS[1], "width": 2},
        "marker": {"size": 7},
        "hovertext": [_told(one) for one in found],
        "hoverinfo": "text",
    }
    layout = {
        "xaxis": axis("batch size", type="category"),
        "yaxis": axis("ms per sample at MAXN", rangemode="tozero"),
        "showlegend": False,
        "hovermode": "closest",
    }
    return Chart("sample", "Its time per sample", "", [line], layout, 320)


def _sizes(found: Sequence[Found]) -> list[str]:
    return [str(one.batch_size) for one in found]


def layers_chart(found: Found) -> Chart:
    """Output channels that every cut convolution and dense layer keeps, beside those it had."""
    plan = found.variant.plan
    cuts = [(layer.name, plan[layer.name]) for layer in found.variant.cost.layers if layer.name in plan]
    cuts = [(name, one) for name, one in cuts if one.outputs is not None and one.of is not None]
    names = [name for name, _ in cuts]
    kept = [len(one.outputs or ()) for _, one in cuts]
    gone = [(one.of or (0, 0))[1] - stays for (_, one), stays in zip(cuts, kept, strict=True)]
    data = [_bars("stay", names, kept, COLOURS[0]), _bars("removed", names, gone, "rgba(128,138,150,0.35)")]
    layout = {
        "barmode": "stack",
        "bargap": 0.1,
        "xaxis": axis("layer", showticklabels=False, showgrid=False),
        "yaxis": axis("output channels"),
        "legend": LEGEND,
    }
    caption = "Layers that are not cut are left out."
    return Chart("layers", f"{_share(found):.3g} % of the parameters", caption, data, layout, 320)


def _bars(name: str, layers: Sequence[str], counts: Sequence[int], colour: str) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "x": list(layers),
        "y": list(counts),
        "marker": {"color": colour},
        "hovertemplate": f"%{{x}}: %{{y}} {name}<extra></extra>",
    }


def loss_chart(trained: Trained) -> Chart:
    """The loss of every step."""
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
    return Chart("loss", "Loss on the same samples", "", data, layout, 260)
