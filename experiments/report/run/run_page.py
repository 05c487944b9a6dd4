"""Writes a report as one HTML file with figures, data and Plotly, which needs no network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from experiments.report import quantities
from experiments.report.chart import Chart, Section, to_json_value
from experiments.report.html_elements import render_cards
from experiments.report.page_style import PAGE_SCRIPT, render_css
from experiments.report.quantities import duration, number, percent
from experiments.report.run import (
    accuracy_charts,
    energy_charts,
    error_quantiles,
    memory_section,
    mode_charts,
    pareto_charts,
    participation_charts,
    power_section,
    prediction_charts,
    run_comparison,
    run_sample,
    run_tables,
    seed_comparison,
    serving_section,
    timeline_charts,
)
from experiments.report.run.loaded_runs import LoadedRun, load_run, load_runs
from experiments.report.run.seed_groups import SeedGroup, group_by_experiment
from fedge.errors import BadInput
from fedge.telemetry import run_folder


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Write the report of one run folder, or a comparison of several, atomically.

    Args:
        folders: One or more run folders.
        out: The HTML file.

    Raises:
        BadInput: If a folder is not a run folder, or has no finished round.
    """
    if not folders:
        raise BadInput("report", "no run folder", "one or more")
    page = _render_run(load_run(folders[0])) if len(folders) == 1 else _render_comparison(load_runs(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    run_folder.write_text(out, page)


def _render_run(run: LoadedRun) -> str:
    title = escape(f"{run.name}: {run.experiment.policy.name}")
    return render_page(title, _render_head(run), _build_sections(run), f"Run folder: {escape(str(run.folder))}")


def _render_comparison(runs: Sequence[LoadedRun]) -> str:
    groups = group_by_experiment(runs)
    sections = [
        *seed_comparison.build_seed_sections(runs),
        Section("Every run", "★ marks the best figure of a column.", (), run_tables.runs_table(runs).html),
        Section(
            "Accuracy",
            "What the fleet learnt for its time and its energy.",
            run_comparison.accuracy_over_cost_charts(runs),
        ),
        Section("Time against energy", _describe_marks(groups), pareto_charts.build_pareto_charts(groups)),
        Section("Cost", "One bar per run.", run_comparison.cost_bar_charts(runs)),
        Section(
            "Prediction error",
            "Mean over the boards: before anything was measured and in the last round, over all modes, against the "
            "emulated truth; and in the last round in the modes that they worked in, against the meter.",
            run_comparison.prediction_error_charts(runs),
            run_comparison.describe_left_out_runs(runs) + run_tables.prediction_errors_table(runs).html,
        ),
        Section("Labels", "How the figures of each run came about.", (), run_tables.labels_table(runs).html),
        Section(
            "What differs", "Fields of the experiments that are not equal.", (), run_tables.render_differences(runs)
        ),
    ]
    head = f"<h1>{len(runs)} runs side by side</h1><p>{_describe_common_emulation(runs)}</p>"
    places = "<br>".join(escape(f"{run.name}: {run.folder}") for run in runs)
    return render_page(f"{len(runs)} runs side by side", head, sections, places)


def _describe_marks(groups: Sequence[SeedGroup]) -> str:
    if seed_comparison.has_several_seeds(groups):
        return "One mark per group: the mean over its seeds."
    return "One mark per run."


# Words ----------------------------------------------------------------------------------------------------------------


def _render_head(run: LoadedRun) -> str:
    experiment = run.experiment
    kinds = ", ".join(
        f"{sum(k == device for k in run.device_by_board.values())} {escape(device)}" for device in run.devices
    )
    played = (
        f"{len(run.rounds)} of {experiment.rounds}" if len(run.rounds) < experiment.rounds else str(len(run.rounds))
    )
    facts = (
        f"policy <b>{escape(experiment.policy.name)}</b>",
        f"{played} round{'s' * (experiment.rounds > 1)}",
        f"{len(run.device_by_board)} board{'s' * (len(run.device_by_board) > 1)} ({kinds})",
        escape(experiment.strategy.name),
        f"predictor {escape(experiment.predictor)}",
        f"backend {escape(experiment.backend)}",
        f"seed {experiment.seed}",
    )
    return (
        f"<h1>{escape(run.name)}</h1><p class='soft'>{' · '.join(facts)}</p>"
        f"{_render_headline_cards(run)}<p>{_describe_emulation(run)}</p>{run_tables.provenance_table(run).html}"
    )


def _describe_emulation(run: LoadedRun) -> str:
    work = run.experiment.workload
    if run.experiment.backend == "fleet":
        truths = {label.get("truth", {}).get("label") for label in run.labels.values()}
        some = "Told by boards that are recorded folders in part, of which nothing is measured"
        how = "Measured by the boards themselves" if truths <= {"measured"} else some
        return (
            f"<b>{how}:</b> the time, power and temperature of their work. <b>Emulated:</b> "
            "their network, as the experiment's <code>link</code> describes it, and what they draw while they wait, "
            f"from their power at rest. <b>Really trained:</b> {escape(work.task)}, by every board on its own samples; "
            f"to the predictors it is {escape(work.cost)}, batch {work.batch_size}."
        )
    return (
        "<b>Emulated:</b> the boards, that is their time, power, temperature and network; every minibatch is priced as "
        f"{escape(work.cost)}, batch {work.batch_size}, on the fleet's own clock. <b>Really trained:</b> "
        f"{escape(work.task)}, by every board on its own share of the data; accuracy is the aggregated model's."
    )


def _describe_common_emulation(runs: Sequence[LoadedRun]) -> str:
    told = dict.fromkeys(_describe_emulation(run) for run in runs)
    return next(iter(told)) if len(told) == 1 else "The runs price or train different things: see what differs, below."


def _render_headline_cards(run: LoadedRun) -> str:
    """Render the headline figures, each with a reference value."""
    figure = run.summary
    length = figure["round_vs_maxn"]
    compared = (
        _saving_card(run, "Saving against MAXN", "maxn", "at work and while waiting"),
        _saving_card(run, "Saving against MAXN, waiting low", "maxn_parked", "at work, lowest mode while waiting"),
        (
            "Mean round against MAXN",
            "–" if length is None else f"{length:.2f} ×",
            "; ".join(filter(None, (_describe_round_lengths(run), run.compared_note))),
        ),
        _oracle_share_card(run, "Share of the oracle's saving", "maxn", "MAXN"),
        _oracle_share_card(run, "The same, waiting low", "maxn_parked", "MAXN, waiting low"),
    )
    shown = (
        ("Final accuracy", percent(figure["final_accuracy"]), f"test loss {number(figure['final_loss'])}"),
        (
            "Energy of the fleet",
            quantities.energy(figure["energy_j"]),
            f"{quantities.energy(figure['train_energy_j'])} of it for work",
        ),
        (
            "Makespan",
            duration(figure["makespan_s"]),
            f"of simulated or board time; wall time {duration(figure['wall_s'])}",
        ),
        *_list_special_cards(run),
        *(() if run.asynchronous else compared),
    )
    return render_cards(shown)


def _describe_round_lengths(run: LoadedRun) -> str:
    """Describe the mean round time and MAXN's, over the same rounds if they can be compared."""
    rounds = run.compared_rounds or run.rounds
    mean_s = sum(row.round_s for row in rounds) / len(rounds)
    return f"{duration(mean_s)}; MAXN: {duration(run.summary['maxn_mean_round_s'])}"


def _list_special_cards(run: LoadedRun) -> Iterator[tuple[str, str, str]]:
    """Yield cards that only some runs have: stale results, cancelled clients, idle boards, an energy budget."""
    figure = run.summary
    if run.asynchronous:
        yield "Time per model", duration(figure["mean_round_s"]), f"{len(run.rounds)} models on average"
        yield "Mean staleness", number(figure["mean_staleness"]), "models made while a board trained"
    elif figure["stale"]:
        yield "Late results", str(figure["stale"]), "that joined a later round"
    if figure["cancelled"] and not run.asynchronous:
        yield "Cancelled", str(figure["cancelled"]), "board rounds stopped because enough others were done"
    if figure["resting_energy_j"]:
        yield "Boards at rest", quantities.energy(figure["resting_energy_j"]), "idle power of those that were not asked"
    if figure["budget_j"] is not None:
        told = figure["ended"] or f"of {quantities.energy(figure['budget_j'])}"
        yield "Energy budget spent", percent(figure["budget_spent"]), escape(told)


def _saving_card(run: LoadedRun, name: str, baseline: str, how: str) -> tuple[str, str, str]:
    spent_j = [getattr(row, f"{baseline}_energy_j") for row in run.compared_rounds]
    facts = (f"MAXN {how}: {quantities.energy(sum(spent_j) if spent_j else None)}", run.compared_note)
    return name, percent(run.summary[f"saving_vs_{baseline}"]), "; ".join(filter(None, facts))


def _oracle_share_card(run: LoadedRun, name: str, baseline: str, told: str) -> tuple[str, str, str]:
    best = percent(run.summary[f"oracle_saving_vs_{baseline}"])
    return (
        name,
        percent(run_tables.share_of_oracle_saving(run, baseline), 0),
        f"knowing the truth saves {best} against {told}",
    )


def _build_sections(run: LoadedRun) -> list[Section]:
    scale = 'Colour is the share of the board\'s own maximum: 0<span class="scale"></span>100 %. Hover for MHz. '
    scale += run_sample.sample_run(run).note
    took_part = participation_charts.build_participation_charts(run)
    shown = (
        [Section("Who took part", "Which boards were asked, and what they had left.", took_part)] if took_part else []
    )
    return [
        Section(
            "Accuracy",
            "What the fleet learnt, for its rounds, its time and its energy.",
            accuracy_charts.build_accuracy_charts(run),
        ),
        Section(
            "Timeline", timeline_charts.TIMELINE_LEADS[run.asynchronous], timeline_charts.build_timeline_charts(run)
        ),
        *shown,
        Section("Energy", "Where the joules went.", (energy_charts.client_energy_chart(run),)),
        power_section.build_power_section(run),
        *serving_section.build_serving_sections(run),
        *memory_section.build_memory_sections(run),
        Section("Power modes", scale, mode_charts.build_mode_charts(run)),
        Section(
            "Predictions",
            "Could the boards foresee their time and power?",
            prediction_charts.build_prediction_charts(run),
            error_quantiles.render_error_quantiles(run) + run_tables.render_errors_by_samples(run),
        ),
        Section("Events", "What went otherwise than planned.", (), run_tables.render_events(run)),
        Section("Last round", "Every board's mode, and why it took it.", (), run_tables.render_last_round(run)),
    ]


# HTML -----------------------------------------------------------------------------------------------------------------


def render_page(title: str, head: str, sections: Sequence[Section], foot: str) -> str:
    from plotly.offline import get_plotlyjs

    charts = [to_json_value(_chart_data(chart)) for section in sections for chart in section.charts]
    # "<" is escaped, so that no text in the data can end the script element.
    data = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}</title>\n<link rel="icon" '
        f'href="data:,">\n<style>{render_css()}</style>\n</head>\n<body>\n<main>\n'
        f"{head}\n{''.join(_render_section(section) for section in sections)}\n<footer>{foot}</footer>\n"
        '<p id="said" class="unseen" role="status"></p>\n</main>\n'
        f'<script type="application/json" id="charts">{data}</script>\n'
        f"<script>{get_plotlyjs()}</script>\n<script>{PAGE_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _chart_data(chart: Chart) -> dict[str, object]:
    """Return a chart's data for the page's script; headings and captions are in the HTML."""
    plain = {name: getattr(chart, name) for name in ("key", "data", "layout", "height_px", "spans")}
    return {**plain, "frames": [dataclasses.asdict(frame) for frame in chart.frames]}


def _render_section(section: Section) -> str:
    wide = len(section.charts) <= 1 or any(chart.frames for chart in section.charts)
    size = "100%" if wide else "300px" if len(section.charts) == 3 else "420px"
    body = "".join(_render_figure(chart) for chart in section.charts)
    grid = f'<div class="grid" style="--min: {size}">{body}</div>' if body else ""
    return f"<section><h2>{section.title}</h2><p class='soft'>{section.lead}</p>{grid}{section.html}</section>\n"


def _render_figure(chart: Chart) -> str:
    caption = f'<figcaption class="caption">{chart.caption.strip()}</figcaption>' if chart.caption.strip() else ""
    return (
        f"<figure><h3>{chart.title}</h3>{_render_controls(chart)}"
        f'<div class="chart" id="chart-{chart.key}" style="height:{chart.height_px}px"></div>{caption}</figure>'
    )


def _render_controls(chart: Chart) -> str:
    key = chart.key
    if chart.menu and chart.frames:
        options = "".join(f'<option value="{i}">{escape(one.label)}</option>' for i, one in enumerate(chart.frames))
        menu = f'<label>{escape(chart.menu)} <select id="slider-{key}">{options}</select></label>'
        return f'<div class="controls">{menu}<output id="told-{key}"></output></div>'
    if len(chart.frames) > 1:
        slider = (
            f'<input type="range" id="slider-{key}" min="0" max="{len(chart.frames) - 1}" step="1" aria-label="round">'
        )
        return f'<div class="controls">{slider}<output id="told-{key}"></output></div>'
    if chart.frames:
        return f'<div class="controls"><input type="hidden" id="slider-{key}"><output id="told-{key}"></output></div>'
    if len(chart.spans) > 1:
        menus = f"{_render_menu('from', chart)}{_render_menu('to', chart)}"
        return f'<div class="controls">{menus}<button type="button" id="all-{key}">all</button></div>'
    return ""


def _render_menu(which: str, chart: Chart) -> str:
    last = len(chart.spans) - 1
    chosen = max(0, len(chart.spans) - timeline_charts.ROUNDS_IN_VIEW) if which == "from" else last
    options = "".join(
        f'<option value="{i}"{" selected" if i == chosen else ""}>{escape(label)}</option>'
        for i, (label, _, _) in enumerate(chart.spans)
    )
    words = "rounds" if which == "from" else "to"
    return f'<label>{words} <select id="{which}-{chart.key}">{options}</select></label>'
