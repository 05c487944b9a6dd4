"""Evaluate strategies on all problems of a pair: tables stand in for boards, brute force finds the best choice.

The figures of a pair's problems of one family are summarised from the score of every problem.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedge import registry
from fedge.costs.cost_profile import CostProfile
from fedge.errors import BadInput, FedgeError
from fedge.serving.job_pair import JobPair, build_pair
from fedge.serving.strategies import DEFAULT_STRATEGY, STRATEGIES, SearchContext, strategy_for
from fedge.serving.trial_search import (
    FAMILIES,
    ProblemFamily,
    ServingProblem,
    Trial,
    TrialReading,
    count_steps_per_window,
    default_problems,
    evaluate_choices,
    holds_limits,
    measure_from_table,
    read_problems,
    run_search,
    select_family,
)
from fedge.studies.implausible_rows import restrict_to_plausible
from fedge.studies.serving.job_tables import JobTableOptions, build_pair_knowledge, check_same_board, read_job_tables
from fedge.types import ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class StrategyCase:
    """A pair, its problems of one family, and the strategy's prior knowledge.

    ``context`` carries neither a seed nor reuse, which a job adds. ``blank_row`` is the row with what is known already.
    """

    pair: JobPair
    family: ProblemFamily
    problems: tuple[ServingProblem, ...]
    context: SearchContext
    blank_row: StrategyRow


@dataclass(frozen=True, slots=True, eq=False)
class StrategyJob:
    """A strategy on a case.

    With ``sample`` that many of the problems are drawn at random, in random order: a stream. The seed fixes the draw
    and the strategy's own randomness.
    """

    case: StrategyCase
    strategy: str
    seed: int = 0
    sample: int | None = None
    reuse: bool = False

    def __str__(self) -> str:
        return f"{self.strategy} on {self.case.pair.name} ({self.case.family}), seed {self.seed}"


@dataclass(frozen=True, slots=True)
class ProblemOptimum:
    """The best figures that a problem allows.

    Attributes:
        steps: Most training steps per window, or per second for training alone.
        infer_s: Least inference time at that number, in seconds.
        steps_per_s: Most steps per second of all feasible choices, not only of those with most steps per window.
    """

    steps: float
    infer_s: float
    steps_per_s: float


def run_strategy_job(job: StrategyJob, now_s: Callable[[], float] = time.process_time) -> StrategyRow:
    """Return the row of one job; any exception of the strategy becomes its ``error``.

    Its ``seconds`` are CPU time by default, so they do not depend on the machine's load.
    """
    blank = replace(job.case.blank_row, strategy=job.strategy, seed=job.seed, reuse=job.reuse)
    began = now_s()
    try:
        accounts = list(_score_problems(job))
    except FedgeError as error:
        return replace(blank, error=str(error))
    except Exception as error:  # noqa: BLE001 - a strategy may be the user's own
        return replace(blank, error=f"{type(error).__name__}: {error}")
    return summarize_scores(blank, accounts, now_s() - began)


def draw_problems(problems: Sequence[ServingProblem], count: int | None, seed: int) -> tuple[ServingProblem, ...]:
    """Return ``count`` of the problems in random order without repetition, or all of them in their order for None."""
    if count is None:
        return tuple(problems)
    chosen = np.random.default_rng(seed).permutation(len(problems))[:count]
    return tuple(problems[i] for i in chosen)


def find_optimum(problem: ServingProblem, pair: JobPair) -> ProblemOptimum | None:
    """Return the optimum by brute force over all modes and batch sizes, or None if no choice is feasible."""
    every = evaluate_choices(problem, pair)
    if not every.feasible.any():
        return None
    steps = every.steps[every.feasible]
    most = steps.max()
    return ProblemOptimum(
        float(most),
        float(every.infer_s[every.feasible][steps == most].min()),
        float(every.steps_per_s[every.feasible].max()),
    )


def _score_problems(job: StrategyJob) -> Iterator[ProblemScore]:
    case = job.case
    strategy = strategy_for(job.strategy, replace(case.context, reuse=job.reuse, seed=job.seed), "--strategies")
    measure = functools.cache(measure_from_table(case.pair))  # thousands of problems ask for the same trials
    known: set[Trial] = set()
    for problem in draw_problems(case.problems, job.sample, job.seed):
        found = run_search(strategy.search(problem), measure)
        new = set(found.tried) - known
        score = score_answer(problem, case.pair, found.choice, len(new))
        yield replace(score, power_modes=len({trial.row for trial in new} - {trial.row for trial in known}))
        if job.reuse:
            known |= new


def score_answer(problem: ServingProblem, pair: JobPair, choice: Trial | None, tried: int) -> ProblemScore:
    """Score an answer by the tables.

    Raises:
        ValueError: For a choice that the pair does not have.
    """
    top = find_optimum(problem, pair)
    if choice is None:
        return ProblemScore(top is not None, answered=False, tried=tried)
    _check_choice(problem, pair, choice)
    seen = measure_from_table(pair)(choice)
    batch = None if choice.batch is None else pair.batch_sizes[choice.batch]
    score = _add_breach(ProblemScore(top is not None, answered=True, tried=tried), problem, batch, seen)
    if top is None or not holds_limits(problem, batch, seen):
        return score
    return _add_gap(replace(score, solved=True), problem, batch, seen, top=top)


def _check_choice(problem: ServingProblem, pair: JobPair, choice: Trial) -> None:
    places = len(pair.batch_sizes) if problem.family != "train" else 0
    good_batch = choice.batch is None if not places else choice.batch is not None and 0 <= choice.batch < places
    if not 0 <= choice.row < len(pair.modes) or not good_batch:
        raise ValueError(f"answered {choice}: a row of {len(pair.modes)} and a place of {places} batch sizes")


def _add_breach(score: ProblemScore, problem: ServingProblem, batch: int | None, seen: TrialReading) -> ProblemScore:
    over_w = max(0.0, seen.power_w - problem.power_w)
    score = replace(score, over_w=over_w, over=over_w / problem.power_w)
    if batch is None or problem.latency_s is None or problem.rate_hz is None:
        return score
    latency = (batch / problem.rate_hz + seen.infer_s) / problem.latency_s - 1.0
    behind = seen.infer_s * problem.rate_hz / batch - 1.0
    return replace(score, late=max(0.0, latency, behind), keeps_up=behind <= 0.0)


def _add_gap(
    score: ProblemScore, problem: ServingProblem, batch: int | None, seen: TrialReading, *, top: ProblemOptimum
) -> ProblemScore:
    """Add loss and excess of a solved problem."""
    if batch is None or problem.rate_hz is None:
        longer = max(1.0, seen.train_s * top.steps)  # the best one's own product may round to less
        return replace(score, loss=longer - 1.0, rate_loss=1.0 - 1.0 / longer)
    score = replace(score, excess=seen.infer_s / top.infer_s - 1.0)
    if problem.family == "infer" or top.steps == 0:
        return score
    steps, window_s = count_steps_per_window(problem, batch, seen), batch / problem.rate_hz
    return replace(score, loss=1.0 - steps / top.steps, rate_loss=1.0 - steps / window_s / top.steps_per_s)


DEFAULT_PROBLEM_SET = "default"


@dataclass(frozen=True, slots=True)
class StrategyStudyOptions:
    """The request of an evaluation.

    Attributes:
        strategies: Names of strategies, separated by commas.
        problems: ``DEFAULT_PROBLEM_SET``, or the path of a file of problems.
        reuse: Whether a strategy keeps what it profiled for earlier problems.
        problem_count: Number of problems to draw at random, in a stream; None for all.
        plausible: Whether modes with an implausible row are left out.
    """

    tables: JobTableOptions
    strategies: str = DEFAULT_STRATEGY
    problems: str = DEFAULT_PROBLEM_SET
    reuse: bool = False
    problem_count: int | None = None
    seed: int = 0
    seeds: int = 1
    plausible: bool = False


def build_strategy_jobs(
    options: StrategyStudyOptions, calibrated: Sequence[CostProfile] | None = None
) -> list[StrategyJob]:
    """Return the evaluations to run, in the order of the result rows; priors come from the ``calibrated`` profiles.

    Raises:
        BadInput: If an option, table or problem file is invalid.
    """
    names = _parse_strategies(options.strategies)
    default = select_family(bool(options.tables.train_tables), bool(options.tables.infer_tables))
    given = None if options.problems == DEFAULT_PROBLEM_SET else read_problems(Path(options.problems), default)
    cases = _build_cases(options, given, calibrated)
    least = min(len(case.problems) for case in cases)
    if options.problem_count is not None and options.problem_count > least:
        raise BadInput("--problem-count", str(options.problem_count), f"at most {least}: so many problems there are")
    return [
        StrategyJob(case, strategy=name, seed=seed, sample=options.problem_count, reuse=options.reuse)
        for case in cases
        for name in names
        for seed in range(options.seed, options.seed + options.seeds)
    ]


def _parse_strategies(text: str) -> tuple[str, ...]:
    names = registry.split_names("--strategies", text, "names of strategies, separated by commas")
    for name in names:
        registry.load_named("--strategies", name, STRATEGIES)
    return names


def _build_cases(
    options: StrategyStudyOptions, given: tuple[ServingProblem, ...] | None, calibrated: Sequence[CostProfile] | None
) -> list[StrategyCase]:
    """Combine every training table with every inference table, and each pair with every family that has problems."""
    training, inference = read_job_tables(options.tables)
    problems = default_problems(select_family(bool(training), bool(inference))) if given is None else given
    cases: dict[tuple[str, ...], StrategyCase] = {}
    for family in FAMILIES:
        chosen = tuple(problem for problem in problems if problem.family == family)
        if not chosen:
            continue
        _check_tables_given(family, training, inference)
        for train in training if family != "infer" else [None]:
            for infer in inference if family != "train" else [()]:
                case = _build_case(family, chosen, (train, infer), calibrated, leave_out=options.plausible)
                cases[(family, case.blank_row.train or "", case.blank_row.infer or "")] = case
    return list(cases.values())


def _check_tables_given(family: ProblemFamily, training: Sequence[object], inference: Sequence[object]) -> None:
    if family != "infer" and not training:
        raise BadInput("--train-table", "no table", f"a training table: the problems are of family {family}")
    if family != "train" and not inference:
        raise BadInput("--infer-table", "no table", f"an inference table: the problems are of family {family}")


def _build_case(
    family: ProblemFamily,
    problems: tuple[ServingProblem, ...],
    tables: tuple[ProfileTable | None, Sequence[ProfileTable]],
    calibrated: Sequence[CostProfile] | None,
    *,
    leave_out: bool,
) -> StrategyCase:
    train, infer = tables
    check_same_board(train, infer)
    whole = pair = build_pair(train, infer)
    if leave_out:
        pair = restrict_to_plausible(whole, [*([] if train is None else [train]), *infer])
    knowledge = build_pair_knowledge(pair, train, infer, calibrated)
    first = train or infer[0]
    blank_row = StrategyRow(
        "",
        pair.name,
        family=family,
        device=first.device,
        train=train.path if train else None,
        infer=infer[0].path if infer else None,
        priors=knowledge.priors,
        modes_left_out=len(whole.modes) - len(pair.modes) if leave_out else None,
    )
    return StrategyCase(pair, family=family, problems=problems, context=knowledge.context, blank_row=blank_row)


PERCENT = 100.0
POWER_TOLERANCE_W = 1.0
LATENCY_TOLERANCE = 0.01
"""An answer violates a limit if it exceeds power by more than the first, or latency by more than this share."""


@dataclass(frozen=True, slots=True)
class ProblemScore:
    """One problem's answer compared with the best one.

    Attributes:
        tried: Number of trials; ``power_modes`` counts the power modes among them, whatever the batch size.
        loss: Share of training steps lost by a solved problem's answer; nan if not applicable, as the next two.
        rate_loss: Share of training steps per second lost.
        excess: Excess of the inference time, as a share.
        over_w: Excess of an answer's power over its limit in watts; ``over`` as a share of the limit.
        late: Share by which the latency budget, or the service rate, is exceeded.
        keeps_up: Whether the queue stays bounded.
    """

    solvable: bool
    answered: bool
    tried: int
    power_modes: int = 0
    solved: bool = False
    loss: float = math.nan
    rate_loss: float = math.nan
    excess: float = math.nan
    over_w: float = 0.0
    over: float = 0.0
    late: float = 0.0
    keeps_up: bool = True

    @property
    def is_late(self) -> bool:
        """Whether latency is exceeded by more than ``LATENCY_TOLERANCE``, or the queue grows without bound."""
        return self.late > LATENCY_TOLERANCE or not self.keeps_up

    @property
    def is_violation(self) -> bool:
        """Whether a limit is exceeded by more than its tolerance."""
        return self.over_w > POWER_TOLERANCE_W or self.is_late


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """A strategy's figures on one pair and family. Losses, excesses, shares and violations are in percent.

    Over the solved problems, ``loss_*`` is t_tr / least t_tr - 1 for training alone and 1 - N / most N for both jobs,
    ``excess_*`` is t_in / t_in of the best choice - 1, and ``steps_per_s_loss_mean`` is the loss of training steps per
    second against the most of all feasible choices. ``priors`` names the tables behind the strategy's priors.

    ``solvable``, ``solved``, ``problems`` and ``answers`` count problems, ``modes_*`` trials: a mode, for inference at
    one batch size; ``power_modes_total`` counts a mode once, whatever the batch sizes. ``modes_mean`` is over the
    solvable problems, as in Fulcrum, and with reuse over all, because any problem may pay for the next.
    ``modes_left_out`` counts modes with an implausible row, if those were excluded. ``seconds`` are those of the clock
    given to the run. ``error`` says why there are no figures. None means not applicable.
    """

    strategy: str
    pair: str
    solvable: int | None = None
    solved: int | None = None
    violations: float | None = None
    """Share of the answers that violate a limit by more than its tolerance, or do not keep up."""
    loss_mean: float | None = None
    loss_median: float | None = None
    excess_mean: float | None = None
    modes_mean: float | None = None
    modes_max: int | None = None
    family: ProblemFamily = "concurrent"
    problems: int = 0
    solved_share: float | None = None
    excess_median: float | None = None
    steps_per_s_loss_mean: float | None = None
    answers: int | None = None
    power_over_1w: float | None = None
    latency_over_1pct: float | None = None
    worst_over: float | None = None
    modes_mean_all: float | None = None
    modes_total: int | None = None
    power_modes_total: int | None = None
    modes_left_out: int | None = None
    seconds: float | None = None
    seed: int = 0
    reuse: bool = False
    device: str = ""
    train: str | None = None
    infer: str | None = None
    priors: tuple[str, ...] = ()
    error: str | None = None


def summarize_scores(blank: StrategyRow, accounts: Sequence[ProblemScore], seconds: float) -> StrategyRow:
    """Return the row of these scores, one per problem, in the order in which they were run."""
    solvable = [account for account in accounts if account.solvable]
    answers = [account for account in accounts if account.answered]
    solved = sum(account.solved for account in solvable)
    trains, infers = blank.family != "infer", blank.family != "train"
    losses = _drop_nan(account.loss for account in solvable if trains)
    rate_losses = _drop_nan(account.rate_loss for account in solvable if trains)
    excesses = _drop_nan(account.excess for account in solvable if infers)
    tried = [account.tried for account in accounts]
    return replace(
        blank,
        solvable=len(solvable),
        solved=solved,
        violations=_share_percent([account.is_violation for account in answers]),
        loss_mean=_average_percent(statistics.fmean, losses),
        loss_median=_average_percent(statistics.median, losses),
        excess_mean=_average_percent(statistics.fmean, excesses),
        excess_median=_average_percent(statistics.median, excesses),
        steps_per_s_loss_mean=_average_percent(statistics.fmean, rate_losses),
        modes_mean=_mean([account.tried for account in (accounts if blank.reuse else solvable)]),
        modes_mean_all=_mean(tried),
        modes_max=max(tried, default=None),
        modes_total=sum(tried),
        power_modes_total=sum(account.power_modes for account in accounts),
        problems=len(accounts),
        solved_share=PERCENT * solved / len(solvable) if solvable else None,
        answers=len(answers),
        power_over_1w=_share_percent([account.over_w > POWER_TOLERANCE_W for account in answers]),
        latency_over_1pct=_share_percent([account.is_late for account in answers]),
        worst_over=PERCENT * max((max(a.over, a.late) for a in answers), default=0.0),
        seconds=seconds,
    )


def _drop_nan(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _average_percent(average: Callable[[list[float]], float], values: list[float]) -> float | None:
    return PERCENT * float(average(values)) if values else None


def _mean(counts: Sequence[int]) -> float | None:
    return statistics.fmean(counts) if counts else None


def _share_percent(marks: Sequence[bool]) -> float:
    return PERCENT * sum(marks) / len(marks) if marks else 0.0
