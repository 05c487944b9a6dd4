"""Replays of a finished run under other conditions, on boards that are drawn from what the run measured.

Symbols: T_k = k-th draw of the time and power of all boards; c_k, v_k = log of a figure of the run as it was, and as
changed, on the boards T_k; a = that of the real run; K = number of draws; d = difference from the mean over the draws.

The changed run is predicted by regression on the run as it was, which is known for the real boards:
mean(v) + b (a - mean(c)) with b = (w s_0^2 + sum dc dv) / (w s_0^2 + sum dc^2). Errors that both runs share cancel
where b is 1; b is near 0 where the changed run is known well and the run as it was is not, as for MAXN, which every
board measures. The prior is worth w draws, in which both runs have the same error, of standard deviation s_0. The
residuals' variance is moderated likewise, (w s_0^2 + sum (dv - b dc)^2) / (w + K - 1), with as many degrees of freedom
of Student's t: most draws of a board lead to the same choices, so that K of them may all agree by chance. The interval
is that of one further draw. Accuracies are compared by their differences.

References:
    Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments",
    Statistical Applications in Genetics and Molecular Biology 3 (2004), section 3.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from experiments.backends import launcher
from experiments.backends.local_backend import run_local
from experiments.spec import experiment_checks
from experiments.spec.backend_keys import change_backend
from experiments.spec.experiment_loader import load_experiment
from fedge.confidence_interval import student_t
from fedge.devices.tables.mode_table import write_mode_table
from fedge.errors import BadInput
from fedge.experiment import BOARD_PLACE, Experiment, list_boards
from fedge.knowledge.evidence_files import find_kinds
from fedge.knowledge.recall import RunKnowledge, read_run_knowledge, write_run_knowledge
from fedge.seeds import make_generator
from fedge.studies.board_posterior import (
    BoardPosterior,
    draw_offsets,
    draw_sibling_table,
    draw_table,
    fit_boards,
    sum_power_range_w,
)
from fedge.studies.task_pool import run_jobs
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RoundRow
from fedge.types import Floats, Label, NamedArrays
from fedge.wire import ClientState
from server.rounds.client_requests import count_bytes
from server.rounds.shared_measurements import share_measurements
from server.state import checkpoint

RATIO_FIGURES = ("energy_j", "makespan_s", "mean_round_s")
DIFFERENCE_FIGURES = ("final_accuracy",)
INTERVAL_LEVEL = 0.90
PRIOR_SD_LOG, PRIOR_DRAWS = 0.005, 4
"""s_0 and w. Defaults, chosen on the 48 changed runs of `benchmarks/replay.py --first-seed 11 --seeds 8`."""
EDGE_SHARE = 0.1
"""Share of the way from the least to the most power of the boards below which a limit on the fleet's power is at the
edge. Default; benchmarks/replay.py plays limits from 40 % on."""
FIXED_KEYS = ("cost", "network", "batch_size", "task")
"""Keys of ``workload`` on which the time and power of a step depend."""


@dataclass(frozen=True, slots=True)
class ReplayFigure:
    """A figure of the run and of its replay.

    Attributes:
        name: Its name in a run's summary.
        actual: The run's own.
        predicted: Prediction for the changed run.
        low: Lower end of the 90 % interval; None for a single draw.
        high: Upper end.
    """

    name: str
    actual: float
    predicted: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The prediction of a run under other conditions.

    Attributes:
        run: Folder of the run.
        changes: The keys that were changed, as ``key=value``.
        rounds: Finished rounds of the run.
        draws: Number of draws of the boards.
        measured: Boards of the changed run that are drawn from their own measurements.
        siblings: Boards drawn from the measurements of another board of their kind.
        modelled: Boards of kinds that the run had not, emulated by their cost profile.
        warning: Why the prediction cannot be trusted; None if nothing is known against it.
        metric: Name of the run's figure of merit.
        label: Origin of the predicted figures.
    """

    run: str
    changes: tuple[str, ...]
    rounds: int
    draws: int
    measured: int
    siblings: int
    modelled: int
    figures: tuple[ReplayFigure, ...]
    warning: str | None = None
    metric: str = "accuracy"
    label: Label = "estimated"


@dataclass(frozen=True, slots=True)
class _Draw:
    number: int
    draws: int

    def __str__(self) -> str:
        return f"draw {self.number + 1}"


def replay_run(
    folder: Path,
    changes: Sequence[str],
    draws: int = 8,
    workers: int | None = None,
    report: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> ReplayResult:
    """Predict what a run would have cost under other conditions.

    Args:
        folder: Folder of a run with at least one finished round.
        changes: Changed keys of the experiment, as ``key=value``.
        workers: Number of draws that run at a time; None for as many as there are cores.
        report: Called with the name of every draw that has ended.
        note: Called with a sentence on what another policy removes.

    Raises:
        BadInput: If the folder holds no such run, or a change is invalid or leaves what the run measured.
    """
    run, rounds = launcher.load_saved_experiment(folder), read_rows(folder, RoundRow)
    state = checkpoint.load_latest(folder / run_folder.CHECKPOINTS)
    if run.backend == "flower":
        raise BadInput(str(folder), "the rows of a Flower app, without its boards' states", "a run of `fedge run`")
    if state is None or not rounds:
        raise BadInput(str(folder), "a run without a finished round", "a run that has finished rounds")
    base, changed = _plan_local(run, len(rounds)), _load_changed(folder, changes, len(rounds), note)
    _check_changes(base, changed)
    if run.backend == experiment_checks.FLEET_BACKEND:
        base, changed = (_move_trained_model(experiment, state.arrays) for experiment in (base, changed))
    known = read_run_knowledge(folder)
    states = _join_recalled(state.fleet.states, known)
    shared = share_measurements(find_kinds(base), states, states) if base.share_samples else {}
    boards = fit_boards(base, states, state.fleet.fronts, shared)
    if not boards:
        raise BadInput(
            str(folder), "a run in which no board measured anything", "a run with measurements of its boards"
        )
    actual = launcher.summarise_rows(run, folder)
    run_draw = partial(_run_draw, base, changed, boards, known)
    pairs = run_jobs(run_draw, [_Draw(number, draws) for number in range(draws)], report, workers)
    names, devices = {board.name for board in boards}, {board.device for board in boards}
    others = [board for board in list_boards(changed) if board.name not in names]
    siblings = sum(board.entry.device in devices for board in others)
    return ReplayResult(
        str(folder),
        changes=tuple(changes),
        rounds=len(rounds),
        draws=draws,
        measured=len(list_boards(changed)) - len(others),
        siblings=siblings,
        modelled=len(others) - siblings,
        figures=tuple(_compare_figures(actual, pairs)),
        warning=None if others else _find_edge(changed, boards),
        metric=run.workload.metric,
    )


def _find_edge(changed: Experiment, boards: Sequence[BoardPosterior]) -> str | None:
    """Return a warning if the fleet's power limit is close to the least that the boards draw at work."""
    limit_w, (least_w, most_w) = changed.policy.fleet_power_w, sum_power_range_w(boards)
    if limit_w is None or limit_w - least_w >= EDGE_SHARE * (most_w - least_w):
        return None
    return (
        f"policy.fleet_power_w={limit_w:g} is at the edge of what these boards can do ({least_w:.3g} to {most_w:.3g} W "
        "at work): small errors decide between modes there, so do not trust this replay"
    )


def _join_recalled(states: Mapping[str, ClientState], known: RunKnowledge) -> dict[str, ClientState]:
    """Return the boards' states with what they recalled of earlier runs, unless it contradicted what they measured."""
    return {
        name: state
        if state.doubts_recalled
        else replace(state, measurements=(*known.own.get(name, ()), *state.measurements))
        for name, state in states.items()
    }


def _plan_local(experiment: Experiment, rounds: int) -> Experiment:
    plain = {"jobs": 1, "rounds": rounds, "exporters": (), "knowledge": "none"}
    return change_backend(experiment, "local").model_copy(update=plain)


def _move_trained_model(experiment: Experiment, arrays: NamedArrays) -> Experiment:
    """Return the experiment with links that move the model that real boards move, unless it names another size."""
    work = experiment.workload
    size_mb = work.model_mb or count_bytes(arrays) / 1e6
    return experiment.model_copy(update={"workload": work.model_copy(update={"model_mb": size_mb})})


def _load_changed(folder: Path, changes: Sequence[str], rounds: int, note: Callable[[str], None]) -> Experiment:
    experiment = load_experiment(folder / run_folder.RUN_YAML, changes, note)
    given = {change.partition("=")[0].strip() for change in changes}
    changed = _plan_local(experiment, experiment.rounds if "rounds" in given else rounds)
    launcher.check_runnable(changed)
    return changed


def _check_changes(base: Experiment, changed: Experiment) -> None:
    """Refuse changes after which a step is not the one that was measured."""
    for key in FIXED_KEYS:
        before, after = getattr(base.workload, key), getattr(changed.workload, key)
        if before != after:
            right = f"{before}, which the run measured; `fedge run` measures another one"
            raise BadInput(f"workload.{key}", str(after), right)
    for place, entry in [*enumerate(base.fleet), *enumerate(changed.fleet)]:
        if entry.loader is not None:
            right = "no loader: the stalls of a replayed board are not known by mode"
            raise BadInput(f"fleet[{place}].loader", "a data loader", right)
    measured = {(entry.cost, entry.truth) for entry in base.fleet}
    for place, entry in enumerate(changed.fleet):
        if (entry.cost, entry.truth) not in measured:
            right = "those of the run: its measurements say what a step takes"
            raise BadInput(f"fleet[{place}]", f"cost {entry.cost} and truth {entry.truth}", right)


def _run_draw(
    base: Experiment, changed: Experiment, boards: Sequence[BoardPosterior], knowledge: RunKnowledge, draw: _Draw
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the experiment as it was and as changed on the same draw of all boards; return both summaries."""
    with tempfile.TemporaryDirectory(prefix="fedge-replay-") as temp:
        tables = Path(temp) / "tables"
        tables.mkdir()
        for board in boards:
            offsets = draw_offsets(draw.draws, make_generator(base.seed, board.name, "replay offsets"))[draw.number]
            rng = make_generator(base.seed, board.name, draw.number, "replay")
            write_mode_table(tables / f"{board.name}.csv", draw_table(board, offsets, rng))
        _draw_siblings(changed, boards, tables, draw)
        run_on = partial(_run_on, tables=tables, knowledge=knowledge)
        return run_on(base, folder=Path(temp) / "base"), run_on(changed, folder=Path(temp) / "changed")


def _draw_siblings(changed: Experiment, boards: Sequence[BoardPosterior], tables: Path, draw: _Draw) -> None:
    """Write tables of boards that the run had not, where it had boards of their kind."""
    names = {board.name for board in boards}
    by_device = {device: cycle([b for b in boards if b.device == device]) for device in {b.device for b in boards}}
    for board in list_boards(changed):
        if board.name not in names and board.entry.device in by_device:
            rng = make_generator(changed.seed, board.name, draw.number, "replay")
            like = next(by_device[board.entry.device])
            write_mode_table(tables / f"{board.name}.csv", draw_sibling_table(like, rng))


def _run_on(experiment: Experiment, *, tables: Path, knowledge: RunKnowledge, folder: Path) -> dict[str, Any]:
    """Run an experiment on the boards of ``tables`` and return its summary; boards without a table stay as they are."""
    known = {path.stem for path in tables.iterdir()}
    drawn = {board.entry for board in list_boards(experiment) if board.name in known}
    truth = f"table:{tables}/{BOARD_PLACE}.csv"
    fleet = tuple(e.model_copy(update={"truth": truth}) if e in drawn else e for e in experiment.fleet)
    folder.mkdir()
    write_run_knowledge(folder, knowledge)
    run_local(experiment.model_copy(update={"fleet": fleet}), folder, lambda: None)
    return launcher.summarise_rows(experiment, folder)


def _compare_figures(
    actual: Mapping[str, Any], pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Iterable[ReplayFigure]:
    is_share = actual.get("metric", "accuracy") == "accuracy"
    for name in (*RATIO_FIGURES, *DIFFERENCE_FIGURES):
        is_ratio = name in RATIO_FIGURES
        known = [[one[name] for one in pair] for pair in pairs if all(_has_figure(one, name) for one in pair)]
        if not known or not _has_figure(actual, name):
            continue
        (before, after), own = np.transpose(known), float(actual[name])
        if is_ratio:
            predicted, half = _predict_by_regression(np.log(before), np.log(after), math.log(own))
        else:
            predicted, half = _predict_by_difference(after - before, own)
        scale = math.exp if is_ratio else float
        least, most = (0.0, math.inf) if is_ratio else (0.0, 1.0) if is_share else (-math.inf, math.inf)
        yield ReplayFigure(
            name,
            actual=own,
            predicted=min(most, scale(predicted)),
            low=None if half is None else max(least, scale(predicted - half)),
            high=None if half is None else min(most, scale(predicted + half)),
        )


def _has_figure(summary: Mapping[str, Any], name: str) -> bool:
    """Return whether a figure is known, and has a logarithm if it is compared by ratios."""
    return summary.get(name) is not None and (name in DIFFERENCE_FIGURES or summary[name] > 0)


def _predict_by_regression(before: Floats, after: Floats, actual: float) -> tuple[float, float | None]:
    """Predict a figure of the changed run, and half the width of its interval, which is None for a single draw.

    Args:
        before: Log of the figure in the draws of the run as it was, shape (draws,).
        after: The same in those of the changed run.
        actual: Log of the real run's figure.
    """
    from_mean, changed_from_mean, prior = before - before.mean(), after - after.mean(), PRIOR_DRAWS * PRIOR_SD_LOG**2
    squares = prior + from_mean @ from_mean
    slope = (prior + from_mean @ changed_from_mean) / squares
    surprise = actual - before.mean()
    predicted, count = float(after.mean() + slope * surprise), len(before)
    if count < 2:
        return predicted, None
    residuals, degrees = changed_from_mean - slope * from_mean, PRIOR_DRAWS + count - 1
    variance = (prior + residuals @ residuals) / degrees * (1 + 1 / count + surprise**2 / squares)
    return predicted, student_t(degrees, INTERVAL_LEVEL) * math.sqrt(variance)


def _predict_by_difference(effects: Floats, actual: float) -> tuple[float, float | None]:
    """Predict a figure and half the width of its interval from the changes in the draws; None for a single draw."""
    predicted, count = actual + float(effects.mean()), len(effects)
    if count < 2:
        return predicted, None
    return predicted, student_t(count - 1, INTERVAL_LEVEL) * float(effects.std(ddof=1)) * math.sqrt(1 + 1 / count)
