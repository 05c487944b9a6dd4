"""Figures of every model that predicts something unseen, on one table, without what a rotation leaves out.

Symbols: y measured, m predicted, s the predicted spread (log units). Error |m - y| / y and bias m / y - 1, both as
means over the table's rows; the 90 % interval is m exp(-1.645 s) ... m exp(1.645 s), its upper end the one-sided 95 %
bound.
A decision is the mode of least predicted energy that is at most ``DEFAULT_MAX_SLOWDOWN`` times as slow as MAXN, with
the margin of the command that makes it.

A case leaves out a workload, a board, a family of networks or a batch size: every calibrated profile, timed step and
table that bears it. What is judged is a table of what was left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedge.analysis.roofline.board_constants import (
    BoardConstants,
    activation_intensity,
    compute_rooflines,
    fit_constants,
)
from fedge.analysis.roofline.microbenchmark import fit_per_mode
from fedge.analysis.roofline.roofline_analysis import FITTED_MARGIN, find_networks
from fedge.analysis.roofline.roofline_model import (
    DEFAULT_MAX_SLOWDOWN,
    ModeRooflines,
    batch_energy_j,
    build_roofline_batch,
    choose_within_slowdown,
    compute_batch_times,
    find_oracle_row,
)
from fedge.costs.cost_priors import cost_at_batch_size
from fedge.costs.cost_profile import CostProfile, WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.layer_estimate import load_timed_steps
from fedge.costs.layered_work import find_family, find_known_layers
from fedge.costs.memory.step_need import BOUND_SDS, fit_memory_calibration
from fedge.costs.memory.step_table import MeasuredSteps, StepTable, TargetName, gather_steps
from fedge.costs.slowdown_margin import CostEvidence, LeftOut, rotate_predictions
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.measured_correction import correct_relative_to_row
from fedge.decisions.mode_objectives import compute_step_energy_j, find_least_energy_within_slowdown
from fedge.devices.catalogue import aliases, find, load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import build_background, list_workload_names
from fedge.modes import find_mode_index
from fedge.pareto import find_nearest_row
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors import DEFAULT_PREDICTOR, load_predictor
from fedge.predictors.explorers import find_method_explorer, load_explorer
from fedge.predictors.table_board import Z_90, TableBoard, profile_table
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.mode_choice_study import ModeChoiceJob, find_steps, run_mode_choice
from fedge.studies.serving.job_tables import JobTableOptions
from fedge.studies.serving.strategy_study import StrategyStudyOptions, build_strategy_jobs, run_strategy_job
from fedge.types import Floats, Modes, Predictions, ProfileTable, Workload

TransferPart = Literal["predictor", "layers", "roofline", "pagoda", "memory", "online", "serving"]
TransferKind = Literal["train", "infer", "both"]
TransferQuantity = Literal["time", "power", "memory", "choice", "rounds", "problems"]
ONLINE_RATIOS = (1.5, 2.0, 3.0)
ONLINE_ROUNDS = 40
"""Rounds of an online run: modes are learnt in the first ten, and the other thirty are judged."""
SERVING_PROBLEMS = 100
"""Problems of a pair of jobs that are drawn of Fulcrum's 6,560."""
UNPRUNED = 0.0
"""Pruning level of the networks as they are published, which are also judged alone."""
VARIANTS: Mapping[TransferPart, tuple[str, ...]] = {
    "predictor": ("", "front"),
    "memory": ("", "unpruned"),
    "online": tuple(f"deadlines x {ratio:g}" for ratio in ONLINE_RATIOS),
}
"""What a model is judged on more than once per table, by name."""
CHOICE_CONFIDENCE = 0.95
"""Probability with which a choice by predictors, layers and rooflines should keep its slowdown."""
UNPROMISED = "no lower mode keeps the slowdown with the stated probability"
"""Why MAXN stays, where a margin follows from a model's own errors."""
Choose = Callable[[Predictions, int], int]
"""Choose a row of the predictions, given that of MAXN; rows of infinite power are not allowed."""


def list_variants(part: TransferPart, modes: int | None) -> tuple[str, ...]:
    """Return what a model is judged on after a number of measured modes; the explorer of none does not matter."""
    return ("",) if modes == 0 else VARIANTS.get(part, ("",))


@dataclass(frozen=True, slots=True)
class TransferRow:
    """Figures of one model on one table. Errors, shares and regrets are in percent; None does not apply.

    Attributes:
        left_out: What was left out with the table.
        quantity: What was predicted or decided.
        kind: Whether its steps are of training, of inference, or both beside each other.
        variant: One of ``VARIANTS``: a part of the table's rows, the deadlines, or the explorer; empty for all, or the
            predictor's own explorer.
        covered: Share of the values in their 90 % intervals.
        bounded: Share of the values at or below the one-sided 95 % bound, for memory the guard's of 99 %.
        slowdown: Measured slowdown of the chosen mode from MAXN.
        saving: Measured energy saved by the chosen mode, compared with MAXN.
        oracle_saving: Energy saved by the best mode within the slowdown.
        regret: Measured energy of the decisions beyond the oracle's, of rounds from the tenth on; of problems the
            training steps that are lost.
        missed: Share of the deadlines that were missed, or of the solvable problems that were not solved; 100 for a
            choice that is slower than allowed.
        refused: Why the model makes no prediction or choice.
    """

    part: TransferPart
    left_out: LeftOut
    judged: str
    quantity: TransferQuantity
    kind: TransferKind = "train"
    variant: str = ""
    modes: int | None = None
    seed: int = 0
    rows: int = 0
    error: float | None = None
    bias: float | None = None
    covered: float | None = None
    bounded: float | None = None
    slowdown: float | None = None
    saving: float | None = None
    oracle_saving: float | None = None
    regret: float | None = None
    missed: float | None = None
    refused: str | None = None


def score_quantity(
    blank: TransferRow, predicted: Floats, measured: Floats, sd_log: Floats | float, bound_sds: float = Z_90
) -> TransferRow:
    """Return the row of one quantity; all arrays have the shape (n,). The bound lies ``bound_sds`` spreads above."""
    off = np.log(predicted / measured)
    return replace(
        blank,
        rows=len(off),
        error=_percent(np.abs(np.expm1(off))),
        bias=_percent(np.expm1(off)),
        covered=_percent(np.abs(off) <= Z_90 * sd_log),
        bounded=_percent(off >= -bound_sds * np.asarray(sd_log)),
    )


def score_choice(blank: TransferRow, table: ProfileTable, found: Predictions, choose: Choose) -> TransferRow | None:
    """Return the row of a decision by predictions of the table's n modes, which are judged where they are plausible.

    None without a plausible row of MAXN, the mode of the largest knobs, to which a slowdown refers.
    """
    maxn = find_mode_index(table.modes, table.maxn)
    allowed = find_plausible_rows(table, table.maxn)
    if maxn is None or not allowed[maxn]:
        return None
    chosen = choose(replace(found, power_w=np.where(allowed, found.power_w, np.inf)), maxn)
    energy_j = np.where(allowed, table.step_s * table.power_w, np.inf)
    best, slower = find_oracle_row(table.step_s, energy_j, maxn), table.step_s / table.step_s[maxn]
    return replace(
        blank,
        quantity="choice",
        rows=1,
        slowdown=float(slower[chosen]),
        saving=100.0 * float(1.0 - energy_j[chosen] / energy_j[maxn]),
        oracle_saving=100.0 * float(1.0 - energy_j[best] / energy_j[maxn]),
        regret=100.0 * float(energy_j[chosen] / energy_j[best] - 1.0),
        missed=100.0 * float(slower[chosen] > DEFAULT_MAX_SLOWDOWN),
    )


def choose_with_margin(margin: Floats | float) -> Choose:
    """Return the choice of ``fedge roofline``, with a margin on the slowdown (log units), shape (modes,) or for all."""

    def choose(found: Predictions, maxn: int) -> int:
        joules = compute_step_energy_j(found)
        return choose_within_slowdown(found.modes, found.step_s, joules, maxn_row=maxn, margin=margin).row

    return choose


def choose_with_confidence(found: Predictions, maxn: int) -> int:
    """Choose as ``fedge predict choose --max-slowdown`` does, with ``CHOICE_CONFIDENCE``."""
    z = compute_margin_z(CHOICE_CONFIDENCE)
    return find_least_energy_within_slowdown(found, maxn, DEFAULT_MAX_SLOWDOWN, z).row


def _percent(values: Floats | NDArray[np.bool_]) -> float:
    return 100.0 * float(values.mean())


def score_modes(blank: TransferRow, table: ProfileTable, found: Predictions, choose: Choose) -> Iterator[TransferRow]:
    """Yield the rows of time, power and the decision of predictions of all modes of a table."""
    yield from score_predictions(blank, table, found)
    choice = score_choice(blank, table, found, choose)
    if choice is not None:
        yield choice


def mark_refusal(row: TransferRow) -> TransferRow:
    """Count a choice of MAXN as a refusal, as ``fedge roofline`` does."""
    stays = row.quantity == "choice" and row.slowdown == 1.0 and row.saving == 0.0
    return replace(row, refused=UNPROMISED) if stays else row


def score_predictions(blank: TransferRow, table: ProfileTable, found: Predictions) -> Iterator[TransferRow]:
    """Yield the rows of time and power of predictions of all modes of a table."""
    yield score_quantity(replace(blank, quantity="time"), found.step_s, table.step_s, found.step_s_sd_log)
    yield score_quantity(replace(blank, quantity="power"), found.power_w, table.power_w, found.power_w_sd_log)


def _start_row(part: TransferPart, judged: JudgedTable, left_out: LeftOut) -> TransferRow:
    return TransferRow(part, left_out, judged.name, "time", kind=judged.kind)


# The predictor, after few measured modes ------------------------------------------------------------------------------


def judge_predictor(judged: JudgedTable, left_out: LeftOut, counts: Sequence[int], seeds: int) -> Iterator[TransferRow]:
    """Yield the rows of the default predictor after some numbers of modes of its own choice; without modes, once.

    The decision is that of ``fedge predict choose``, also after as many modes of the explorer ``front``.
    """
    table, knowledge = judged.table, _build_knowledge(judged, left_out)
    board, maxn = TableBoard(table), find_nearest_row(table.modes, table.maxn)
    for count in (count for count in counts if count < len(table.modes)):
        for variant in list_variants("predictor", count):
            for seed in range(seeds if count else 1):
                own = replace(knowledge, seed=seed)
                explorer = load_explorer(variant or find_method_explorer(DEFAULT_PREDICTOR), table.modes, own)
                seen = board.measure_rows(profile_table(explorer, board, count))
                found = load_predictor(DEFAULT_PREDICTOR, own).fit(seen).predict(table.modes)
                blank = replace(_start_row("predictor", judged, left_out), modes=count, seed=seed, variant=variant)
                if not variant:
                    yield from score_predictions(blank, table, found)
                relative = correct_relative_to_row(found, seen, maxn)
                choice = score_choice(blank, table, relative, choose_with_confidence)
                if choice is not None:
                    yield choice


def _build_knowledge(judged: JudgedTable, left_out: LeftOut) -> PriorKnowledge:
    """Return the priors that remain; but for batch sizes they are what ``fedge predict eval`` starts from.

    Raises:
        BadInput: Nothing remains.
    """
    table, hidden = judged.table, list_hidden_names(judged, left_out)
    if left_out == "batch":
        spec = find(judged.board)
        profiles = [p for p in load_calibrated_inference() if (p.device, p.workload) == (spec.name, table.workload)]
        others = sorted((p for p in profiles if p.batch_size != table.batch_size), key=lambda p: p.batch_size)
        if not others:
            raise BadInput("batch size", f"{table.workload} on {spec.name}", "a workload with other batch sizes")
        return PriorKnowledge(table.maxn, (cost_at_batch_size(others, table.batch_size).coefficients,))
    return build_background(table, without=sorted(hidden), kind=judged.kind).knowledge


def _keep_profiles(hidden: frozenset[str]) -> list[CostProfile]:
    every = (*load_calibrated_training(), *load_calibrated_inference())
    return [profile for profile in every if not {profile.workload, profile.device} & hidden]


# Costs by layers ------------------------------------------------------------------------------------------------------


def judge_layers(judged: JudgedTable, left_out: LeftOut) -> Iterator[TransferRow]:
    """Yield the rows of the cost that is estimated from the network's layers, or between its other batch sizes.

    The decision keeps its slowdown with ``CHOICE_CONFIDENCE``, by the errors on the profiles that remain.
    """
    table, spec = judged.table, find(judged.board)
    work = Workload(table.workload, table.batch_size, judged.kind, find_known_layers(table.workload, judged.kind))
    if work.layers is None:
        raise BadInput("workload", f"{table.workload}, whose layers are not known", "a known workload")
    evidence = _keep_evidence(judged, left_out)
    cost = evidence.predict(spec, work)
    step_s, power_w = (f(cost.coefficients, table.maxn, table.modes) for f in (compute_step_s, compute_power_w))
    spreads = (  # an estimate between batch sizes has no other error than its profile's
        max(cost.time_error_log, cost.residual_time_sd_log),
        max(cost.power_error_log, cost.residual_power_sd_log),
    )
    sds = (np.full(len(step_s), sd) for sd in spreads)
    found, blank = Predictions(table.modes, step_s, power_w, *sds), _start_row("layers", judged, left_out)
    errors = rotate_predictions(evidence, evidence.find_left_out(spec, work))

    def choose(allowed: Predictions, maxn: int) -> int:
        margin = errors.compute_margin(cost, table.maxn, table.modes, maxn_row=maxn, confidence=CHOICE_CONFIDENCE)
        return choose_with_margin(margin)(allowed, maxn)

    yield from map(mark_refusal, score_modes(blank, table, found, choose))


def _keep_evidence(judged: JudgedTable, left_out: LeftOut) -> CostEvidence:
    steps, specs = load_timed_steps(), load_catalogue()
    if left_out == "batch":
        own = judged.board, judged.table.workload, judged.kind, judged.table.batch_size
        kept = [p for p in _keep_profiles(frozenset()) if (p.device, p.workload, p.kind, p.batch_size) != own]
        return CostEvidence(kept, steps, specs)
    hidden = list_hidden_names(judged, left_out)
    timed = [one for one in steps if not {one.network, one.device} & (hidden | {judged.network})]
    return CostEvidence(_keep_profiles(hidden), timed, specs)


# Rooflines ------------------------------------------------------------------------------------------------------------


def judge_rooflines(
    judged: JudgedTable, left_out: LeftOut, among: Sequence[JudgedTable], method: Literal["roofline", "pagoda"]
) -> Iterator[TransferRow]:
    """Yield the rows of a board's rooflines, fitted to the inference tables of the board that remain of ``among``.

    They are fedge's constants, or Pagoda's five constants per mode.
    """
    table = judged.table
    kept = [one.table for one in list_remaining(judged, left_out, among) if _is_same_bench(one, judged)]
    if left_out == "board":
        raise BadInput("board", f"{judged.board}, left out", "a board with tables: constants are fitted board by board")
    networks = find_networks([table.workload, *(one.workload for one in kept)])
    if not kept or len(networks) < len({table.workload, *(one.workload for one in kept)}):
        raise BadInput("tables", f"{len(kept)} other tables", "inference tables of networks whose layers are known")
    batch = build_roofline_batch(networks[table.workload], table.batch_size)
    if method == "pagoda":
        lines, sds = _fit_pagoda(tuple(kept)), (0.0, 0.0)
    else:
        constants = _fit_board(tuple(kept), judged.board)
        lines = compute_rooflines(constants, table.modes, activation_intensity(networks[table.workload]))
        sds = constants.time_sd_log, constants.power_sd_log
    step_s = compute_batch_times(lines, batch).total_s
    power_w = batch_energy_j(lines, batch, step_s) / step_s
    found = Predictions(table.modes, step_s, power_w, *(np.full(len(step_s), sd) for sd in sds))
    choose = choose_with_margin(0.0 if method == "pagoda" else FITTED_MARGIN)
    yield from score_modes(_start_row(method, judged, left_out), table, found, choose)


@lru_cache(maxsize=16)  # the batch sizes of a network that is left out share a fit
def _fit_board(tables: tuple[ProfileTable, ...], board: str) -> BoardConstants:
    return fit_constants(tables, find_networks([table.workload for table in tables]), find(board))


@lru_cache(maxsize=16)
def _fit_pagoda(tables: tuple[ProfileTable, ...]) -> ModeRooflines:
    return fit_per_mode(tables, find_networks([table.workload for table in tables]))


def _is_same_bench(one: JudgedTable, judged: JudgedTable) -> bool:
    """Return whether two tables are of inference on one board, in the same modes."""
    same = (one.board, one.kind) == (judged.board, judged.kind)
    return same and np.array_equal(one.table.modes.knobs, judged.table.modes.knobs)


# Memory ---------------------------------------------------------------------------------------------------------------


def judge_memory(network: str, left_out: LeftOut, tables: Sequence[StepTable], board: str) -> Iterator[TransferRow]:
    """Yield the rows of memory and time of a training step of one network, predicted from the board's others.

    Left out is the network alone (``workload``), or all of its ``family``.
    """
    own = find_family(network)
    kept = [t for t in tables if t.network != network and (left_out != "family" or find_family(t.network) != own)]
    calibration = fit_memory_calibration(kept, board, "a rotation")
    steps = gather_steps([table for table in tables if table.network == network])
    predict: Mapping[TargetName, tuple[Callable[[MeasuredSteps], Floats], float]] = {
        "memory": (
            lambda s: calibration.memory.clip_to_board_mb(calibration.memory.need_mb(s.terms["memory"])),
            calibration.memory_sd_log,
        ),
        "latency": (lambda s: calibration.time.step_ms(s.terms["time"], s.layers), calibration.step_sd_log),
    }
    for target, (compute, sd_log) in predict.items():
        there = steps[np.isfinite(steps.measured[target])]
        for variant, some in zip(VARIANTS["memory"], (there, there[there.level == UNPRUNED]), strict=True):
            quantity: TransferQuantity = "memory" if target == "memory" else "time"
            blank = TransferRow("memory", left_out, f"{board}/{network}", quantity, variant=variant)
            bound_sds = BOUND_SDS if target == "memory" else Z_90
            yield score_quantity(blank, compute(some), some.measured[target], sd_log, bound_sds=bound_sds)


# Choice of modes in rounds --------------------------------------------------------------------------------------------


def judge_online(judged: JudgedTable, left_out: LeftOut, seeds: int) -> Iterator[TransferRow]:
    """Yield the rows of the choice of modes under deadlines from round 10 on.

    Implausible rows are no modes of the board: the oracle would take those that are too good to be true.
    """
    table, hidden = keep_plausible_rows(judged.table), tuple(sorted(list_hidden_names(judged, left_out)))
    for ratio, variant in zip(ONLINE_RATIOS, VARIANTS["online"], strict=True):
        for seed in range(1, seeds + 1):
            job = ModeChoiceJob(
                table, ratio, ONLINE_ROUNDS, find_steps(table), policy="fedge", seed=seed, without=hidden
            )
            found = run_mode_choice(job)
            yield TransferRow(
                "online",
                left_out,
                judged.name,
                "rounds",
                variant=variant,
                modes=found.modes_explored,
                seed=seed,
                rows=ONLINE_ROUNDS,
                saving=found.energy_saved_pct,
                regret=found.regret_after10_pct,
                missed=100.0 * found.deadlines_missed / ONLINE_ROUNDS,
            )


def keep_plausible_rows(table: ProfileTable) -> ProfileTable:
    """Return a table without its implausible rows."""
    keep = find_plausible_rows(table, table.maxn)
    modes = Modes(table.modes.knobs[keep])
    return replace(table, modes=modes, step_s=table.step_s[keep], power_w=table.power_w[keep], idle_w=None)


# Training beside inference --------------------------------------------------------------------------------------------


def judge_serving(train: JudgedTable, infer: JudgedTable, left_out: LeftOut, seeds: int) -> Iterator[TransferRow]:
    """Yield the rows of the default strategy for both jobs on one board, without what is left out with either."""
    hidden = list_hidden_names(train, left_out) | list_hidden_names(infer, left_out)
    options = StrategyStudyOptions(
        JobTableOptions((Path(train.table.path),), (Path(infer.table.path),)),
        problem_count=SERVING_PROBLEMS,
        seeds=seeds,
        plausible=True,
    )
    for job in build_strategy_jobs(options, _keep_profiles(hidden)):
        found = run_strategy_job(job)
        yield TransferRow(
            "serving",
            left_out,
            f"{train.board}/{found.pair}",
            "problems",
            kind="both",
            seed=job.seed,
            rows=found.problems,
            regret=found.loss_mean,
            missed=None if found.solved_share is None else 100.0 - found.solved_share,
            refused=found.error,
        )


LEFT_OUT: tuple[LeftOut, ...] = get_args(LeftOut)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedTable:
    """A measured table of one batch size, with what it is a table of.

    Attributes:
        board: Catalogue name of the board.
        network: Name of the workload's network; the workload's own name if its layers are not known.
    """

    table: ProfileTable
    kind: WorkloadKind
    board: str
    network: str

    @property
    def name(self) -> str:
        """Return ``board/kind/workload bN``."""
        return f"{self.board}/{self.kind}/{self.table.workload} b{self.table.batch_size}"


def read_judged_tables(folder: Path) -> tuple[JudgedTable, ...]:
    """Read every ``<board>/train/*.csv`` and ``<board>/infer/*.csv`` of a folder, once per batch size.

    Raises:
        BadInput: There is none, or one is invalid.
    """
    paths = sorted([*folder.glob("*/train/*.csv"), *folder.glob("*/infer/*.csv")])
    if not paths:
        raise BadInput("TABLES", str(folder), "a folder that holds <board>/train/<workload>.csv or <board>/infer/...")
    return tuple(
        _describe_table(read_mode_table(path, batch_size=size), parse_workload_kind(path))
        for path in paths
        for size in list_batch_sizes(path)
    )


def _describe_table(table: ProfileTable, kind: WorkloadKind) -> JudgedTable:
    return JudgedTable(table, kind, aliases().get(table.device, table.device), find_network_name(table.workload, kind))


def find_network_name(workload: str, kind: WorkloadKind = "train") -> str:
    """Return the name of a workload's network, or the workload's if its layers are not known."""
    layers = find_known_layers(workload, kind)
    return workload if layers is None else layers.network


def list_remaining(judged: JudgedTable, case: LeftOut, among: Sequence[JudgedTable]) -> tuple[JudgedTable, ...]:
    """Return the tables that remain when the judged one is left out with all of its kind."""
    return tuple(other for other in among if not _is_alike(other, judged, case))


def _is_alike(other: JudgedTable, judged: JudgedTable, case: LeftOut) -> bool:
    same = other.table.workload == judged.table.workload
    if case == "family":
        return same or find_family(other.network) == find_family(judged.network)
    if case == "batch":
        return same and (other.kind, other.table.batch_size) == (judged.kind, judged.table.batch_size)
    return same or (case == "board" and other.board == judged.board)


def list_hidden_names(judged: JudgedTable, case: LeftOut) -> frozenset[str]:
    """Return the workloads, networks and boards whose profiles and timed steps are left out.

    That is always the table's workload, also under another name by which the same file was calibrated.
    """
    profiles = (*load_calibrated_training(), *load_calibrated_inference())
    names = list_workload_names((judged.table,), profiles)
    if case == "board":
        names.add(judged.board)
    if case == "family":
        of = {p.workload: find_network_name(p.workload, p.kind) for p in profiles}
        of |= {step.network: step.network for step in load_timed_steps()}
        names |= {name for name, network in of.items() if find_family(network) == find_family(judged.network)}
    return frozenset(names)
