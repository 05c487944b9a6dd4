"""The jobs of one board: measured tables of training and inference, or tables computed from calibrated costs.

Prior knowledge of a strategy about them has nothing that was learnt from either, by name or by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedge.costs.cost_priors import estimate_inference_cost, find_workload_cost
from fedge.costs.cost_profile import CostProfile, WorkloadKind, load_calibrated_inference, load_calibrated_training
from fedge.costs.layered_work import find_named_workload
from fedge.costs.table_calibration import build_planning_modes, predict_table
from fedge.devices.catalogue import find, load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.knowledge.table_background import (
    build_background,
    find_board_spec,
    list_workload_names,
    name_prior_tables,
    resolve_maxn,
)
from fedge.pareto import find_nearest_row
from fedge.registry import split_counts
from fedge.serving.job_pair import JobPair, build_pair
from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import BATCH_SIZES
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.serving.serving_planner import MAX_SERVICES, MeasuredServiceDemand, ServingJobs
from fedge.types import DeviceSpec, Label, PowerMode, ProfileTable, Workload, weakest_label


@dataclass(frozen=True, slots=True)
class JobTableOptions:
    """The tables to read.

    Attributes:
        board: The board; by default from the tables' paths.
        workload: The workload of a single table; by default from its path.
        batch_size: Batch size of the training tables, if they hold several.
    """

    train_tables: tuple[Path, ...] = ()
    infer_tables: tuple[Path, ...] = ()
    board: str | None = None
    workload: str | None = None
    batch_size: int | None = None


def read_job_tables(options: JobTableOptions) -> tuple[list[ProfileTable], list[tuple[ProfileTable, ...]]]:
    """Read all tables.

    Returns:
        The training tables, and per inference table one table for each of its batch sizes.

    Raises:
        BadInput: If a table is invalid.
    """
    if not options.train_tables and not options.infer_tables:
        raise BadInput("--train-table, --infer-table", "no table", "a training table, an inference table or both")
    if options.workload is not None and len(options.train_tables) + len(options.infer_tables) > 1:
        got = f"{len(options.train_tables) + len(options.infer_tables)} tables"
        raise BadInput("--workload", got, "one table: names come from paths")
    for option, paths in (("--train-table", options.train_tables), ("--infer-table", options.infer_tables)):
        if len({path.resolve() for path in paths}) < len(paths):
            raise BadInput(option, "the same table twice", "each table once")
    training = [_read_training_table(path, options) for path in options.train_tables]
    inference = [_read_inference_tables(path, options) for path in options.infer_tables]
    return training, inference


def check_same_board(train: ProfileTable | None, infer: Sequence[ProfileTable]) -> None:
    """Raise ``BadInput`` if the tables are known to belong to different boards."""
    names = [table.device for table in ([] if train is None else [train]) + list(infer)]
    boards = [spec for spec in map(find_board_spec, names) if spec is not None]
    if any(spec != boards[0] for spec in boards):
        got = ", ".join(dict.fromkeys(names))
        raise BadInput("--train-table, --infer-table", f"tables of {got}", "tables of one kind of board (see --board)")


def list_implausible_rows(tables: Iterable[ProfileTable], mode: PowerMode) -> Iterator[str]:
    """Yield a description of each table whose row for this mode is implausible, see ``find_plausible_rows``."""
    for table in tables:
        row = find_nearest_row(table.modes, mode)
        if not find_plausible_rows(table, resolve_maxn(table, find_board_spec(table.device)))[row]:
            seen = f"{1e3 * table.step_s[row]:.1f} ms and {table.power_w[row]:.1f} W"
            yield f"{table.workload} at batch size {table.batch_size}: {seen} are far off its other modes"


def _read_training_table(path: Path, options: JobTableOptions) -> ProfileTable:
    if path.exists() and parse_workload_kind(path) == "infer":
        raise BadInput("--train-table", f"{path}, which lies in a folder of inference", "a table of training")
    return read_mode_table(path, options.board, options.workload, options.batch_size)


def _read_inference_tables(path: Path, options: JobTableOptions) -> tuple[ProfileTable, ...]:
    if path.exists() and path.resolve().parent.name == "train":
        raise BadInput("--infer-table", f"{path}, which lies in a folder of training", "a table of inference")
    sizes = list_batch_sizes(path)
    return tuple(read_mode_table(path, options.board, options.workload, size) for size in sizes)


@dataclass(frozen=True, slots=True)
class ConcurrentJobOptions:
    """The jobs to plan for: tables, or a board and names of workloads.

    Attributes:
        train_table: Table of the training job, or None.
        board: The board; needed without tables.
        train_workload: Workload to train, without tables.
        infer_workloads: Workloads to serve, without tables.
        max_latency_s: Latency budget of each inference job in seconds.
        rate_hz: Requests per second of each inference job.
        infer_batch_sizes: Batch sizes of inference, separated by commas; by default those of the tables.
        batch_size: Batch size of the training table, if it holds several.
    """

    train_table: Path | None = None
    infer_tables: tuple[Path, ...] = ()
    board: str | None = None
    train_workload: str | None = None
    infer_workloads: tuple[str, ...] = ()
    max_latency_s: tuple[float, ...] = ()
    rate_hz: tuple[float, ...] = ()
    infer_batch_sizes: str | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class JobTables:
    """The tables behind the jobs, given or computed from a cost model; ``descriptions`` says which for each.

    Attributes:
        label: Label of the weakest table.
        is_given: Whether the user gave them.
    """

    train: ProfileTable | None
    infer: tuple[tuple[ProfileTable, ...], ...]
    descriptions: tuple[str, ...]
    label: Label
    is_given: bool

    def build_pair(self, service: int = 0) -> JobPair:
        return build_pair(self.train, self.infer[service] if self.infer else ())


def load_job_tables(options: ConcurrentJobOptions) -> JobTables:
    """Read or compute the tables of all jobs.

    Raises:
        BadInput: If options contradict each other, or a latency or rate is missing.
    """
    has_tables = bool(options.train_table or options.infer_tables)
    if has_tables and (options.train_workload or options.infer_workloads):
        right = "tables alone (--train-table, --infer-table), or --board with names of workloads alone"
        raise BadInput("--train-workload, --infer-workload", "names beside tables", right)
    source = _read_given(options) if has_tables else _price_workloads(options)
    services = len(source.infer)
    if services > MAX_SERVICES:
        raise BadInput("--infer-table", f"{services} services", f"from 1 to {MAX_SERVICES}")
    for option, values in (("--max-latency-s", options.max_latency_s), ("--rate-hz", options.rate_hz)):
        if len(values) != services:
            count = {0: "no value", 1: "1 value"}.get(len(values), f"{len(values)} values")
            jobs = {0: "nothing is served", 1: "1 inference job"}.get(services, f"{services} inference jobs")
            raise BadInput(
                option, f"{count}, and {jobs}", "one value for each --infer-table or --infer-workload, in order"
            )
        for value in values:
            require_positive(option, value)
    return replace(
        source, infer=tuple(_select_batch_sizes(tables, options.infer_batch_sizes) for tables in source.infer)
    )


def require_positive(option: str, value: float) -> float:
    """Return the value if it is finite and positive.

    Raises:
        BadInput: Otherwise, naming the option.
    """
    if not 0.0 < value < float("inf"):
        raise BadInput(option, f"{value:g}", "a number above 0")
    return value


def build_serving_jobs(source: JobTables, options: ConcurrentJobOptions) -> ServingJobs:
    """Build the jobs over the modes that all tables share."""
    flat = [table for tables in source.infer for table in tables]
    pair = build_pair(source.train, flat)
    # ``build_pair`` sorts by batch size; ``rank`` maps each table to its place there.
    places = sorted(range(len(flat)), key=lambda i: flat[i].batch_size)
    rank = {i: place for place, i in enumerate(places)}
    services, first = [], 0
    for name, tables, latency, rate in zip(
        name_services(source), source.infer, options.max_latency_s, options.rate_hz, strict=True
    ):
        rows = [rank[first + i] for i in range(len(tables))]
        sizes = tuple(table.batch_size for table in tables)
        services.append(
            MeasuredServiceDemand(
                name,
                rate_hz=rate,
                latency_s=latency,
                batch_sizes=sizes,
                infer_s=pair.infer_s[rows],
                infer_w=pair.infer_w[rows],
            )
        )
        first += len(tables)
    trains = source.train is not None
    return ServingJobs(pair.modes, tuple(services), pair.train_s if trains else None, pair.train_w if trains else None)


def name_services(source: JobTables) -> list[str]:
    """Return a unique name for each service."""
    names: list[str] = []
    for tables in source.infer:
        count = sum(name.split(" #")[0] == tables[0].workload for name in names)
        names.append(f"{tables[0].workload} #{count + 1}" if count else tables[0].workload)
    return names


def _read_given(options: ConcurrentJobOptions) -> JobTables:
    given = JobTableOptions(board=options.board, batch_size=options.batch_size)
    train = None if options.train_table is None else _read_training_table(options.train_table, given)
    # One service may be listed twice with different rates.
    inference = tuple(_read_inference_tables(path, given) for path in options.infer_tables)
    flat = [table for tables in inference for table in tables]
    check_same_board(train, flat)
    every = [*([] if train is None else [train]), *flat]
    about = tuple(dict.fromkeys(f"{table.label}: {table.path}" for table in every))
    return JobTables(train, inference, about, weakest_label(table.label for table in every), is_given=True)


def _price_workloads(options: ConcurrentJobOptions) -> JobTables:
    if options.board is None or not (options.train_workload or options.infer_workloads):
        named = options.train_workload or options.infer_workloads
        got = "workloads without a board" if named else "no table and no workload"
        right = "tables (--train-table, --infer-table), or --board with --train-workload, --infer-workload or both"
        raise BadInput("the jobs", got, right)
    spec, specs = find(options.board), load_catalogue()
    modes = build_planning_modes(spec)
    sizes = _parse_batch_sizes(options.infer_batch_sizes) if options.infer_batch_sizes else BATCH_SIZES
    training = []
    if options.train_workload is not None:
        work = _find_job(options.train_workload, "train", options.batch_size)
        training = [find_workload_cost(spec, work, specs)]
    with _attribute_errors("--infer-workload"):
        inference = [_price_inference(spec, name, sizes, specs) for name in options.infer_workloads]
    about = dict.fromkeys(_describe_profiles(profiles) for profiles in (training, *inference) if profiles)
    tables = tuple(tuple(predict_table(spec, modes, profile) for profile in profiles) for profiles in inference)
    train = predict_table(spec, modes, training[0]) if training else None
    label = weakest_label(profile.label for profiles in (training, *inference) for profile in profiles)
    return JobTables(train, tables, tuple(about), label, is_given=False)


def _find_job(name: str, kind: WorkloadKind, batch_size: int | None = None) -> Workload:
    """Find a known workload, or any network that needs no input shape, such as a file of ``fedge layers --out``."""
    option = "--train-workload" if kind == "train" else "--infer-workload"
    try:
        return find_named_workload(name, batch_size=batch_size, kind=kind, option=option)[0]
    except BadInput as error:
        if error.where != "--input-shape":
            raise
        right = f"a file with its layers, from `fedge layers {name} --input-shape SHAPE --out FILE.json`"
        raise BadInput(option, repr(name), right) from error


def _price_inference(
    spec: DeviceSpec, name: str, sizes: Sequence[int], specs: Mapping[str, DeviceSpec]
) -> list[CostProfile]:
    layers = None
    if not any(profile.workload == name for profile in load_calibrated_inference()):
        layers = _find_job(name, "infer").layers
    label = name if layers is None else layers.network
    return [estimate_inference_cost(spec, label, size, specs, layers=layers) for size in sizes]


@contextmanager
def _attribute_errors(option: str) -> Iterator[None]:
    """Attribute an unknown batch size to ``--infer-batch-sizes``, and other errors to this option."""
    try:
        yield
    except BadInput as error:
        where = "--infer-batch-sizes" if error.where.startswith("batch size") else option
        raise BadInput(where, error.got, error.right) from error


def _describe_profiles(profiles: Sequence[CostProfile]) -> str:
    """Describe the profiles of a job in one line: provenance and errors on the measured modes."""
    first = profiles[0]
    what = {"train": "training", "infer": "inference"}[first.kind]
    sizes = ", ".join(str(profile.batch_size) for profile in profiles)
    labels = " and ".join(dict.fromkeys(profile.label for profile in profiles))
    errors = [p.time_mape for p in profiles if p.time_mape is not None]
    watts = [p.power_mape for p in profiles if p.power_mape is not None]
    if errors and watts:
        where = f"mean error up to {100 * max(errors):.1f} % in time, {100 * max(watts):.1f} % in power"
    else:
        where = first.source
    return f"{labels}: {what} of {first.workload} in batches of {sizes} ({where})"


def _parse_batch_sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted(split_counts("--infer-batch-sizes", text, "1,4,16")))


def _select_batch_sizes(tables: Sequence[ProfileTable], text: str | None) -> tuple[ProfileTable, ...]:
    if text is None:
        return tuple(tables)
    sizes, known = _parse_batch_sizes(text), {table.batch_size: table for table in tables}
    missing = [size for size in sizes if size not in known]
    if missing:
        raise BadInput("--infer-batch-sizes", str(missing[0]), f"of {tables[0].path}: {', '.join(map(str, known))}")
    return tuple(known[size] for size in sizes)


@dataclass(frozen=True, slots=True, eq=False)
class PairKnowledge:
    """A strategy's search context, and the tables behind its priors, named as in ``Background``."""

    context: SearchContext
    priors: tuple[str, ...]


def build_pair_knowledge(
    pair: JobPair,
    train: ProfileTable | None,
    infer: Sequence[ProfileTable],
    calibrated: Sequence[CostProfile] | None = None,
) -> PairKnowledge:
    """Build the prior knowledge of the pair of these tables.

    Left out for both jobs are all calibrated profiles, of training and of inference and on any board, that bear the
    name of one job's workload, or were fitted to one of its tables (by SHA-256), and all others of the name under which
    that table was calibrated.
    """
    profiles = (*load_calibrated_training(), *load_calibrated_inference()) if calibrated is None else tuple(calibrated)
    jobs = (*([] if train is None else [train]), *infer)
    usable = exclude_seen_profiles(jobs, profiles)
    training = (
        None
        if train is None
        else build_background(train, (), sorted(list_workload_names(jobs, profiles)), profiles, layered=False)
    )
    inference = tuple(
        build_background(table, calibrated=usable, kind="infer").knowledge
        for table in sorted(infer, key=lambda table: table.batch_size)
    )
    context = SearchContext(
        pair.modes,
        pair.batch_sizes,
        None if training is None else training.knowledge,
        inference if pair.has_inference else (),
    )
    of_training = () if training is None else training.prior_tables
    return PairKnowledge(
        context, tuple(dict.fromkeys([*of_training, *name_prior_tables(usable if context.infer else ())]))
    )


def exclude_seen_profiles(tables: Sequence[ProfileTable], profiles: Sequence[CostProfile]) -> tuple[CostProfile, ...]:
    """Return the profiles that neither bear the name of a table's workload nor were fitted to one of the tables."""
    names = list_workload_names(tables, profiles)
    return tuple(profile for profile in profiles if profile.workload not in names)
