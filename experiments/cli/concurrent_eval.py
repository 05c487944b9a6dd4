"""``fedge concurrent eval``: evaluates strategies on measured tables, prints the results, writes rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command_output import check_output
from experiments.cli.concurrent_tables import ConcurrentTableOptions, check_same_board, read_job_tables
from experiments.cli.study_jobs import run_jobs
from fedge import registry
from fedge.errors import BadInput, FedgeError
from fedge.serving.job_pair import build_pair
from fedge.serving.serving_problems import FAMILIES, ProblemFamily, ServingProblem, default_problems, parse_problems
from fedge.serving.strategies import DEFAULT_STRATEGY, STRATEGIES
from fedge.studies.implausible_rows import restrict_to_plausible
from fedge.studies.prediction_study import limit_to_one_thread
from fedge.studies.serving.pair_knowledge import build_pair_knowledge
from fedge.studies.serving.strategy_scores import StrategyRow, row_to_dict
from fedge.studies.serving.strategy_study import StrategyCase, StrategyJob, run_strategy_job
from fedge.telemetry import run_folder
from fedge.types import ProfileTable

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_PROBLEM_SET = "default"


@dataclass(frozen=True, slots=True)
class ConcurrentEvalOptions:
    """Command-line options."""

    tables: ConcurrentTableOptions
    strategies: str = DEFAULT_STRATEGY
    problems: str = DEFAULT_PROBLEM_SET
    reuse: bool = False
    sample: int | None = None
    seed: int = 0
    seeds: int = 1
    plausible: bool = False


def evaluate_strategies(asked: ConcurrentEvalOptions, json_file: Path | None) -> None:
    """Evaluate strategies, print tables and optionally write JSON.

    Raises:
        BadInput: If the input is invalid; raised before any evaluation.
        FedgeError: At the end, if a strategy failed.
    """
    check_output("--json", json_file, "[")
    rows = evaluate_jobs(build_eval_jobs(asked))
    from experiments.report.analysis.strategy_terminal import build_strategy_tables

    _make_console().print(build_strategy_tables(rows), crop=False)
    if json_file is not None:
        write_rows(json_file, rows)
    _check_failures(rows)


def build_eval_jobs(asked: ConcurrentEvalOptions) -> list[StrategyJob]:
    """Return the evaluations to run, in the order of the result rows.

    Raises:
        BadInput: If an option, table or problem file is invalid.
    """
    names = _parse_strategies(asked.strategies)
    default = select_family(bool(asked.tables.train), bool(asked.tables.infer))
    given = None if asked.problems == DEFAULT_PROBLEM_SET else read_problems(Path(asked.problems), default)
    cases = _build_cases(asked, given)
    least = min(len(case.problems) for case in cases)
    if asked.sample is not None and asked.sample > least:
        raise BadInput("--sample", str(asked.sample), f"at most {least}: so many problems there are")
    return [
        StrategyJob(case, strategy=name, seed=seed, sample=asked.sample, reuse=asked.reuse)
        for case in cases
        for name in names
        for seed in range(asked.seed, asked.seed + asked.seeds)
    ]


def evaluate_jobs(jobs: Sequence[StrategyJob], workers: int | None = None) -> list[StrategyRow]:
    """Run all jobs in parallel with a progress line on standard error.

    Args:
        jobs: The evaluations.
        workers: Number of processes; by default the cores available to this process.
    """
    with limit_to_one_thread(), _show_progress(len(jobs)) as told:
        return run_jobs(run_job, jobs, told, workers)


def run_job(job: StrategyJob) -> StrategyRow:
    """Run one job; its ``seconds`` are CPU time, so they do not depend on the machine's load."""
    return run_strategy_job(job, _ProcessTimeClock())


class _ProcessTimeClock:
    """Clock of this process's CPU time; nothing waits by it."""

    def now_s(self) -> float:
        return time.process_time()

    def sleep_s(self, seconds: float) -> None:
        raise NotImplementedError


def select_family(trains: bool, infers: bool) -> ProblemFamily:
    """Return the problem family that the given kinds of tables form."""
    return "concurrent" if trains and infers else "train" if trains else "infer"


def read_problems(path: Path, family: ProblemFamily) -> tuple[ServingProblem, ...]:
    """Read serving problems from a YAML or JSON file.

    Args:
        path: The file.
        family: Family of problems that have a rate but name no family.

    Raises:
        BadInput: If the file is invalid.
    """
    import yaml

    right = "a YAML or JSON file that can be read: a list of problems"
    try:
        text = path.read_text(encoding="utf-8")
        # Reject YAML aliases: a few lines of them can expand beyond any memory.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise BadInput("--problems", f"{path}: an alias (*name)", f"{right}, each written out")
        entries = yaml.safe_load(text)
    except OSError as error:
        raise BadInput("--problems", str(path), f"`default`, or {right} ({error.strerror})") from error
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise BadInput("--problems", f"{path}: {why}", right) from error
    if not isinstance(entries, list):
        what = {type(None): "an empty file", dict: "a mapping"}.get(type(entries), f"a {type(entries).__name__}")
        raise BadInput("--problems", f"{path}: {what}", f"{right}, e.g. - {{power_w: 30, latency_s: 1, rate_hz: 60}}")
    if family == "infer" and isinstance(entries, list):
        entries = [_mark_inference(entry) for entry in entries]
    return parse_problems(entries, str(path))


def _mark_inference(entry: object) -> object:
    """Mark a problem with a rate as inference if there is no training table."""
    if isinstance(entry, dict) and "family" not in entry and entry.get("rate_hz") is not None:
        return {**entry, "family": "infer"}
    return entry


def write_rows(path: Path, rows: Sequence[StrategyRow]) -> None:
    """Write rows as a JSON list."""
    try:
        run_folder.write_json(path, [row_to_dict(row) for row in rows])
    except OSError as error:
        raise BadInput("--json", str(path), f"a file that can be written ({error.strerror})") from error


# Input ----------------------------------------------------------------------------------------------------------------


def _parse_strategies(text: str) -> tuple[str, ...]:
    names = [word.strip() for word in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise BadInput("--strategy", repr(text), "names of strategies, separated by commas, each once")
    for name in names:
        registry.load_named("--strategy", name, STRATEGIES)
    return tuple(names)


def _build_cases(asked: ConcurrentEvalOptions, given: tuple[ServingProblem, ...] | None) -> list[StrategyCase]:
    """Combine every training table with every inference table, and each pair with every family that has problems."""
    training, inference = read_job_tables(asked.tables)
    problems = default_problems(select_family(bool(training), bool(inference))) if given is None else given
    cases: dict[tuple[str, ...], StrategyCase] = {}
    for of in FAMILIES:
        of_family = tuple(problem for problem in problems if problem.family == of)
        if not of_family:
            continue
        _check_tables_given(of, training, inference)
        for train in training if of != "infer" else [None]:
            for infer in inference if of != "train" else [()]:
                case = _build_case(of, of_family, (train, infer), leave_out=asked.plausible)
                cases[(of, case.blank_row.train or "", case.blank_row.infer or "")] = case
    return list(cases.values())


def _check_tables_given(family: ProblemFamily, training: Sequence[object], inference: Sequence[object]) -> None:
    if family != "infer" and not training:
        raise BadInput("--train", "no table", f"a training table: the problems are of family {family}")
    if family != "train" and not inference:
        raise BadInput("--infer", "no table", f"an inference table: the problems are of family {family}")


def _build_case(
    family: ProblemFamily,
    problems: tuple[ServingProblem, ...],
    tables: tuple[ProfileTable | None, Sequence[ProfileTable]],
    *,
    leave_out: bool,
) -> StrategyCase:
    train, infer = tables
    check_same_board(train, infer)
    whole = pair = build_pair(train, infer)
    if leave_out:
        pair = restrict_to_plausible(whole, [*([] if train is None else [train]), *infer])
    known = build_pair_knowledge(pair, train, infer)
    first = train or infer[0]
    about = StrategyRow(
        "",
        pair.name,
        family=family,
        device=first.device,
        train=train.path if train else None,
        infer=infer[0].path if infer else None,
        priors=known.priors,
        modes_left_out=len(whole.modes) - len(pair.modes) if leave_out else None,
    )
    return StrategyCase(pair, family=family, problems=problems, ground=known.ground, blank_row=about)


# Output ---------------------------------------------------------------------------------------------------------------


def _check_failures(rows: Sequence[StrategyRow]) -> None:
    errors = [f"{row.strategy} on {row.pair}: {row.error}" for row in rows if row.error is not None]
    if errors:
        raise FedgeError(f"{len(errors)} of {len(rows)} rows failed; {'; '.join(dict.fromkeys(errors))}")


def _make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show the number of finished jobs and the last one; without a terminal, one line per job.

    A job takes up to a minute, so silence in a log would look like a hang.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = _make_console(stderr=True)
    if not console.is_terminal:
        yield lambda job: _say(f"fedge: done: {job}\n")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("playing", total=total)
        yield lambda job: progress.update(task, advance=1, description=job)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
