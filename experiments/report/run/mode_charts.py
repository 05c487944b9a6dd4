"""Power modes that one run's boards chose, as one heatmap per knob."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiments.report.chart import CATEGORY_AXIS, Chart, Trace, axis, heatmap_trace
from experiments.report.palette import SHARE_COLOURS
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import sample_run
from fedge.devices import catalogue
from fedge.errors import FedgeError
from fedge.telemetry.store_records import ClientRow

KNOB_TITLES = (
    ("cores", "CPU cores", ""),
    ("cpu_mhz", "CPU clock", " MHz"),
    ("gpu_mhz", "GPU clock", " MHz"),
    ("mem_mhz", "Memory clock", " MHz"),
)
MAX_LABELLED_ROUNDS = 12
"""Number of rounds up to which a heatmap's cells show their value."""


def build_mode_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot one heatmap (boards by rounds) per knob as a share of its maximum, and one of the second mode's share.

    If a board completed several tasks for one model version, the last one counts.
    """
    view = sample_run(run)
    rows = {(row.board, row.round): row for row in view.select_rows(run)}
    numbers = [row.round for row in view.rounds]
    charts = []
    mixed = {(board, number): _describe_mix(row) for (board, number), row in rows.items()}
    for knob, title, unit in KNOB_TITLES:
        top = _knob_maxima(run, knob)
        cells = [[_knob_value(rows.get((board, number)), knob) for number in numbers] for board in view.boards]
        trace = _heatmap_trace(
            run,
            boards=view.boards,
            numbers=numbers,
            cells=cells,
            tops=[top[run.device_by_board[board]] for board in view.boards],
            unit=unit,
        )
        trace["hovertext"] = [
            [text + mixed.get((board, number), Markup()) for number, text in zip(numbers, line, strict=True)]
            for board, line in zip(view.boards, trace["hovertext"], strict=True)
        ]
        charts.append(_heatmap_chart(f"modes-{knob}", title, trace, len(view.boards)))
    if any(mixed.values()):
        shares = [[_mix_percent(rows.get((board, number))) for number in numbers] for board in view.boards]
        trace = _heatmap_trace(
            run, boards=view.boards, numbers=numbers, cells=shares, tops=[100.0] * len(view.boards), unit=" %"
        )
        caption = "Share of a round's steps, in percent, that ran first in a second, slower mode."
        charts.append(
            _heatmap_chart("modes-mix", title="Second mode", trace=trace, boards=len(view.boards), caption=caption)
        )
    return tuple(charts)


def _heatmap_chart(key: str, title: str, trace: Trace, boards: int, caption: str = "") -> Chart:
    layout = {
        "xaxis": axis("round", type="category", showgrid=False, nticks=12),
        "yaxis": {**CATEGORY_AXIS, "dtick": 1},
        "margin": {"t": 8},
    }
    return Chart(key, title, caption, [trace], layout=layout, height_px=66 + 24 * max(3, boards))


def _describe_mix(row: ClientRow) -> Markup:
    if row.mix_mode is None:
        return Markup()
    return Markup("<br>{} of {} minibatches first in {}").format(row.mix_steps, row.steps, row.mix_mode)


def _mix_percent(row: ClientRow | None) -> float | None:
    """Return the percentage of steps in the second mode; None for a board that did not train."""
    return None if row is None or row.cores is None or not row.steps else 100.0 * (row.mix_steps or 0) / row.steps


def _knob_value(row: ClientRow | None, knob: str) -> float | None:
    return None if row is None else getattr(row, knob)


def _knob_maxima(run: LoadedRun, knob: str) -> dict[str, float]:
    """Return the knob's maximum per kind of board: the catalogue's, otherwise the largest observed value."""
    tops = {}
    for device in run.devices:
        observed = [
            value for row in run.clients if row.device == device and (value := _knob_value(row, knob)) is not None
        ]
        try:
            maxn = catalogue.find(device).maxn
        except FedgeError:
            tops[device] = max(observed, default=1.0)
        else:
            tops[device] = float(getattr(maxn, knob))
    return tops


def _heatmap_trace(
    run: LoadedRun,
    boards: Sequence[str],
    numbers: Sequence[int],
    cells: Sequence[Sequence[float | None]],
    tops: Sequence[float],
    unit: str,
) -> Trace:
    shares = [[None if v is None else v / top for v in line] for line, top in zip(cells, tops, strict=True)]
    hover = [
        [
            Markup("{} ({}), round {}: {}").format(
                board,
                run.device_by_board[board],
                number,
                "unknown" if v is None else f"{v:g}{unit} of {top:g}{unit}, {100 * v / top:.0f} %",
            )
            for number, v in zip(numbers, line, strict=True)
        ]
        for board, line, top in zip(boards, cells, tops, strict=True)
    ]
    labelled = len(numbers) <= MAX_LABELLED_ROUNDS
    return heatmap_trace(
        [str(number) for number in numbers],
        boards,
        shares,
        colours=SHARE_COLOURS,
        hover=hover,
        texts=[["" if v is None else f"{v:.0f}" for v in line] for line in cells] if labelled else None,
    )
