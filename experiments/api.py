"""fedge for Python: what ``import fedge`` offers to scripts and notebooks, one function per command that computes.

The functions return the records that the commands render (docs/reference/python.md). A keyword that is not given leaves
the command's default.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.backends import launcher, run_list
from experiments.cli import command_output
from experiments.cli.command_options import build_options
from experiments.run_results import Run, RunComparison, to_frame
from experiments.spec import experiment_checks
from experiments.spec.experiment_loader import build_experiment, find_experiment_file
from fedge.child_processes import limit_to_one_thread
from fedge.errors import BadInput, UnknownName, prefix_errors
from fedge.experiment import Experiment
from fedge.yaml_files import read_yaml_mapping

if TYPE_CHECKING:
    from experiments.backends.environment_check import EnvironmentFinding
    from experiments.backends.run_list import ListedRun
    from experiments.backends.run_replay import ReplayResult
    from experiments.sweeps.sweep_summary import SweepSummary
    from fedge.analysis.board_selection import BoardSelection
    from fedge.analysis.cost_calibration import CalibrationOutcome
    from fedge.analysis.memory_prediction import MemoryPrediction
    from fedge.analysis.placement.placement_advice import PlacementAdvice
    from fedge.analysis.roofline.roofline_analysis import RooflineAnalysis
    from fedge.analysis.topology.topology_result import TopologyResult
    from fedge.characterisation.board_profile import ProfileOutcome
    from fedge.costs.layers.network_source import LayerSummary
    from fedge.knowledge.saved_model import ModelChoice, ModelFront, SavedModel
    from fedge.studies.serving.interleaving_advice import InterleavingAdvice
    from fedge.types import DeviceSpec, Predictions

FilePath = str | Path
Spec = FilePath | Mapping[str, Any] | Experiment
"""An experiment: a YAML file, a mapping like its content, or the resolved record."""
IN_PYTHON = Path("experiment")
"""Stands for the file of an experiment that is a mapping: its paths are relative to the working directory."""


# Runs -----------------------------------------------------------------------------------------------------------------


def run(
    experiment: Spec,
    *,
    name: str | None = None,
    tags: Sequence[str] = (),
    folder: FilePath | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Run an experiment, as ``fedge run`` does, and return the finished run.

    Args:
        experiment: A YAML file or the name of one that fedge brings along, such as ``quickstart``; a mapping like the
            content of one; or a resolved experiment.
        name: Name of the run: its folder is ``runs/NAME``. By default, what was overridden and the time.
        tags: Words by which ``runs`` finds it, besides those of the file.
        folder: The run folder, instead of a name.
        quiet: Whether to show no progress.
        overrides: Fields with other values: ``policy="maxn"``, ``seed=3``, and with two underscores for a field within
            another, ``policy__max_slowdown=1.2``.

    Raises:
        BadInput: If the experiment is invalid; nothing is written then.
        RunFailed: If the run cannot go on; ``resume`` continues it.
    """
    changes = [(key.replace("__", "."), value) for key, value in _to_plain(overrides).items()]
    resolved, where = _resolve(experiment, changes)
    resolved = launcher.add_tags(resolved, tags)
    experiment_checks.require_libraries(resolved, "fedge.run")
    place = launcher.choose_folder(resolved, None if folder is None else Path(folder), name=name, changes=changes)
    with prefix_errors(str(where)):
        launcher.check_runnable(resolved)
    return _run_shown(launcher.start_run, resolved, place, quiet)


def resume(folder: FilePath, *, quiet: bool = False) -> Run:
    """Continue a run from its last checkpoint, as ``fedge resume`` does.

    Raises:
        BadInput: If the folder is not that of a run.
        RunFailed: If the run cannot go on.
    """
    path = Path(folder).resolve()
    experiment = launcher.load_saved_experiment(path)
    launcher.check_runnable(experiment)
    return _run_shown(launcher.continue_run, experiment, path, quiet)


def load(folder: FilePath) -> Run:
    """Return a run, finished or not, from its folder.

    Raises:
        BadInput: If the folder is not that of a run.
    """
    return Run(folder)


def runs(folder: FilePath = "runs", *, tags: Sequence[str] = ()) -> tuple[ListedRun, ...]:
    """List the runs in a folder, the newest first, as ``fedge runs`` does; only those with all ``tags``."""
    return run_list.list_runs(Path(folder), tags)


def compare(runs: Sequence[Run | FilePath]) -> RunComparison:
    """Compare runs or sweeps; runs that differ only in the seed form one group with confidence intervals.

    Raises:
        BadInput: If a folder holds no run, or one without a finished round.
    """
    from experiments.report.run.sweep_report import expand_sweeps

    folders = [one.folder if isinstance(one, Run) else Path(one) for one in runs]
    return RunComparison(expand_sweeps(folders))


def sweep(
    config: FilePath, *, folder: FilePath | None = None, jobs: int | None = None, quiet: bool = False
) -> SweepSummary:
    """Run an experiment with other keys and seeds, as ``fedge sweep`` does; a finished point is not repeated."""
    from experiments.sweeps.point_plan import plan_sweep
    from experiments.sweeps.sweep_driver import check_sweep, choose_sweep_folder, run_sweep

    plan = plan_sweep(Path(config), command_output.warn)
    check_sweep(plan)
    place = choose_sweep_folder(plan.path, None if folder is None else Path(folder))
    with _show_jobs(plan.count, quiet) as report_point:
        return run_sweep(plan, place, jobs, report_point)


def replay(
    run: Run | FilePath, *, draws: int = 8, jobs: int | None = None, quiet: bool = False, **changes: Any
) -> ReplayResult:
    """Predict what a finished run would have cost with other fields, named as the overrides of ``run``."""
    from experiments.backends.run_replay import replay_run

    folder = _to_folder(run)
    texts = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in _to_plain(changes).items()]
    with _show_jobs(draws, quiet) as report_draw:
        return replay_run(folder, texts, draws, jobs, report=report_draw)


def export(run: Run | FilePath, to: str, *, folder: FilePath | None = None, **options: Any) -> int:
    """Export every round of a run to ``tensorboard``, ``mlflow`` or an exporter of yours; return their number."""
    from experiments.backends.run_export import export_run

    texts = [f"{key}={json.dumps(value)}" for key, value in _to_plain(options).items()]
    return export_run(_to_folder(run), to, texts, None if folder is None else Path(folder))


def _to_folder(run: Run | FilePath) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def study_fleet(config: FilePath, *, quiet: bool = False, **options: Any) -> list[Any]:
    """Evaluate the modes that policies choose for a fleet, as ``fedge study fleet`` does; nothing is trained.

    Args:
        config: YAML file of an experiment.
        quiet: Whether to show no progress.
        options: Fields of ``FleetStudyOptions``: ``policies``, ``rounds``, ``seeds``, ``steps``, ``engine``.
    """
    from experiments.backends.study_backend import FleetStudyOptions, build_fleet_study

    study = build_fleet_study(
        _build_record("fedge.study_fleet", FleetStudyOptions, {"config": Path(config), **options}), command_output.warn
    )
    with _show_jobs(len(study.jobs), quiet) as report_job:
        return list(study.run(report_job))


def study_mode_choice(table: FilePath, *, quiet: bool = False, **options: Any) -> list[Any]:
    """Evaluate the modes chosen on one measured board, as ``fedge study mode-choice`` does.

    Args:
        table: A measured table.
        quiet: Whether to show no progress.
        options: Fields of ``ModeChoiceOptions``, such as ``policies``, ``deadline_ratios`` and ``seeds``.
    """
    from fedge.studies.mode_choice_study import ModeChoiceOptions, build_mode_choice_study

    study = build_mode_choice_study(
        _build_record("fedge.study_mode_choice", ModeChoiceOptions, {"table": Path(table), **options})
    )
    with _show_jobs(len(study.jobs), quiet) as report_job:
        return list(study.run(report_job))


# Boards, modes and networks -------------------------------------------------------------------------------------------


def predict(
    table: FilePath | None = None,
    *,
    board: str | None = None,
    workload: str | None = None,
    modes: int | str | None = None,
    method: str | None = None,
    seed: int = 0,
    out: FilePath | None = None,
    **options: Any,
) -> SavedModel:
    """Predict time and power of every mode of a board from few profiled ones, as ``fedge predict fit`` does.

    Args:
        table: A measured table; None profiles an emulated ``board``.
        board: The board.
        workload: The workload.
        modes: Number of modes to profile, or ``all``.
        method: The predictor.
        seed: Seed of all random choices.
        out: File to which the model is also written.
        options: Further fields of ``ModelFitOptions``, such as ``explorer``, ``budget_s`` or ``batch_size``.

    Returns:
        The model; ``predictions`` holds one row per mode, which ``to_table`` turns into a table. ``choose`` and
        ``front`` take it.
    """
    from fedge.knowledge.model_file import save_model
    from fedge.knowledge.model_training import ModelFitOptions, fit_model
    from fedge.knowledge.saved_model import build_saved_model

    given = {"table": None if table is None else Path(table), "board": board, "workload": workload, "modes": modes}
    record = _build_record("fedge.predict", ModelFitOptions, {**given, "method": method, "seed": seed, **options})
    model = fit_model(record, command_output.warn).model
    if out is not None:
        save_model(Path(out), model)
    return build_saved_model(model)


def load_model(path: FilePath) -> SavedModel:
    """Return a model that ``predict`` or ``fedge predict fit`` wrote, with predictions for every mode."""
    from fedge.knowledge.saved_model import open_model

    return open_model(Path(path))


def choose(
    model: SavedModel | FilePath,
    *,
    max_power_w: float | None = None,
    max_step_s: float | None = None,
    max_slowdown: float | None = None,
    time_weight: float | None = None,
    knee: bool = False,
    confidence: float = 0.84,
) -> ModelChoice:
    """Choose a mode by exactly one objective: a limit on power, time or slowdown, a weight of time, or the knee."""
    from fedge.knowledge.saved_model import build_aim, choose_model_mode

    aim = build_aim(
        max_power_w=max_power_w,
        max_step_s=max_step_s,
        max_slowdown=max_slowdown,
        time_weight=time_weight,
        knee=knee,
        confidence=confidence,
    )
    return choose_model_mode(_to_model(model), aim)


def front(model: SavedModel | FilePath, *, against: Literal["power", "energy"] = "power") -> ModelFront:
    """Return the modes that no other mode beats in both time and power, or time and energy."""
    from fedge.knowledge.saved_model import build_model_front

    return build_model_front(_to_model(model), against)


def _to_model(model: SavedModel | FilePath) -> SavedModel | Path:
    return Path(model) if isinstance(model, str | Path) else model


def evaluate_predictors(targets: Sequence[FilePath], *, quiet: bool = False, **options: Any) -> list[Any]:
    """Evaluate predictors on measured tables, as ``fedge predict eval`` does; one result per cell, with its ``row``.

    Args:
        targets: Measured tables.
        quiet: Whether to show no progress.
        options: Fields of ``PredictionStudyOptions``, such as ``methods``, ``modes`` or ``seeds``.
    """
    from fedge.studies.prediction_study import PredictionStudyOptions, build_prediction_study, run_prediction_study

    record = _build_record(
        "fedge.evaluate_predictors", PredictionStudyOptions, {"targets": tuple(map(Path, targets)), **options}
    )
    study = build_prediction_study(record)
    with _show_jobs(study.step_count, quiet) as report_step:
        return list(run_prediction_study(study, report=report_step))


def roofline(network: str, board: str, **options: Any) -> RooflineAnalysis:
    """Place a network on a board's time and energy rooflines, as ``fedge roofline`` does.

    Args:
        network: A network, as NETWORK of ``fedge layers``.
        board: The board.
        options: Fields of ``RooflineOptions``, such as ``mode``, ``batch_size``, ``max_slowdown`` or ``profiles``.
    """
    from fedge.analysis.roofline.roofline_analysis import RooflineOptions, analyse_roofline

    return analyse_roofline(
        _build_record("fedge.roofline", RooflineOptions, {"network": network, "board": board, **options})
    )


def layers(
    network: str,
    *,
    batch_size: int = 1,
    input_shape: str | None = None,
    kind: Literal["train", "infer"] = "infer",
    top: int = 10,
) -> LayerSummary:
    """Count a network's FLOP, bytes, parameters and activations by layer, as ``fedge layers`` does."""
    from fedge.costs.layers.network_source import count_network

    return count_network(network, input_shape, batch_size=batch_size, kind=kind, top=top)


def memory(network: str, board: str, *, batch_size: int = 32, input_shape: str | None = None) -> MemoryPrediction:
    """Predict the peak memory and time of a training step, as ``fedge memory predict`` does."""
    from fedge.analysis.memory_prediction import predict_memory
    from fedge.client.memory_scaling import estimate_usable_mb

    return predict_memory(network, board, batch_size, input_shape, usable_mb=estimate_usable_mb)


def topology(network: str, board: str, *, folder: FilePath | None = None, **options: Any) -> TopologyResult:
    """Find the largest pruned variants of a network that a board can train, as ``fedge topology`` does.

    Args:
        network: A network.
        board: The board.
        folder: Folder to write the variants to.
        options: Fields of ``TopologyOptions``, such as ``batch_size``, ``max_memory_mb`` or ``max_step_s``.
    """
    from fedge.analysis.topology.topology_result import TopologyOptions, find_variants
    from fedge.client.memory_scaling import estimate_usable_mb

    record = _build_record("fedge.topology", TopologyOptions, {"network": network, "board": board, **options})
    return find_variants(record, estimate_usable_mb, folder=None if folder is None else Path(folder))


def place(network: str, board: str, **options: Any) -> PlacementAdvice:
    """Plan instances of a network on a board's accelerators, as ``fedge place`` does.

    Args:
        network: A network.
        board: The board.
        options: Fields of ``PlacementOptions``, such as ``rate_hz``, ``max_power_w`` or ``batch_sizes``.
    """
    from fedge.analysis.placement.placement_advice import PlacementOptions, advise_placement

    return advise_placement(
        _build_record("fedge.place", PlacementOptions, {"network": network, "board": board, **options})
    )


def select_board(
    workload: str, *, max_power_w: float | None = None, max_epoch_s: float | None = None, **options: Any
) -> BoardSelection:
    """Rank boards and modes for a workload, as ``fedge select-board`` does.

    Args:
        workload: A workload or a network.
        max_power_w: Limit of the board's power, in watts.
        max_epoch_s: Limit of an epoch's time, in seconds.
        options: Fields of ``BoardSelectionOptions``, such as ``batch_size``, ``boards``, ``objective`` or ``kind``.
    """
    from fedge.analysis.board_selection import BoardLimits, BoardSelectionOptions
    from fedge.analysis.board_selection import select_board as rank
    from fedge.client.memory_scaling import estimate_usable_mb

    given = {"workload": workload, "limits": BoardLimits(max_power_w, max_epoch_s), **options}
    return rank(_build_record("fedge.select_board", BoardSelectionOptions, given), estimate_usable_mb)


def plan_concurrent(max_power_w: float, *, strategy: str | None = None, **jobs: Any) -> InterleavingAdvice:
    """Plan training and inference on one board within limits, as ``fedge concurrent plan`` does.

    Args:
        max_power_w: Limit of the board's power, in watts.
        strategy: Name of a strategy that searches by profiling.
        jobs: Fields of ``ConcurrentPlanOptions`` and ``ConcurrentJobOptions``, such as ``board``,
            ``train_workload``, ``infer_workloads``, ``max_latency_s`` and ``rate_hz`` (tuples), or ``arrivals``.
    """
    from fedge.studies.serving.interleaving_advice import ConcurrentPlanOptions, advise_interleaving
    from fedge.studies.serving.job_tables import ConcurrentJobOptions

    given = {"max_power_w": max_power_w, "strategy": strategy, **jobs}
    return advise_interleaving(
        _build_record("fedge.plan_concurrent", ConcurrentPlanOptions, given, jobs=ConcurrentJobOptions)
    )


def profile(
    workload: str, out: FilePath, *, board: str = "here", quiet: bool = False, **options: Any
) -> ProfileOutcome:
    """Measure a board's time and power in many modes, as ``fedge profile`` does.

    Args:
        workload: The workload.
        out: The table to write (CSV); an unfinished one is continued.
        board: ``here``, or ``emulated:NAME``.
        quiet: Whether to show no progress.
        options: Fields of ``ProfileOptions``, such as ``modes``, ``explorer`` or ``budget_s``.
    """
    from experiments.cli.profile_commands import show_progress
    from fedge.characterisation.board_profile import ProfileOptions, profile_board

    record = _build_record(
        "fedge.profile", ProfileOptions, {"workload": workload, "out": Path(out), "board": board, **options}
    )
    show: Any = (lambda _: nullcontext(_ignore)) if quiet else show_progress
    return profile_board(record, note=command_output.warn, show_progress=show)


def calibrate(
    tables: Sequence[FilePath],
    *,
    board: str | None = None,
    workload: str | None = None,
    batch_size: int | None = None,
    kind: Literal["train", "infer"] | None = None,
    origin: str = "",
    folder: FilePath | None = None,
) -> Sequence[CalibrationOutcome]:
    """Fit the physical model of time and power to tables, as ``fedge calibrate`` does.

    Args:
        tables: Measured tables.
        board: The board; None takes it from a table's path, like the next one.
        workload: The workload.
        batch_size: The batch size to fit, if a table holds several.
        kind: Kind of step; None takes it from the table's folder.
        origin: Author of the measurements.
        folder: Folder for the coefficients; None writes nothing.
    """
    from fedge.analysis.cost_calibration import calibrate_tables

    return calibrate_tables(
        [Path(table) for table in tables],
        board=board,
        workload=workload,
        batch_size=batch_size,
        kind=kind,
        origin=origin,
        folder=None if folder is None else Path(folder),
    )


def boards() -> tuple[DeviceSpec, ...]:
    """Return the boards of the catalogue, each with its knobs, presets and sources."""
    from fedge.devices import catalogue

    return tuple(catalogue.load_catalogue().values())


def doctor() -> tuple[EnvironmentFinding, ...]:
    """Check which packages, backends and data can be used on this machine, as ``fedge doctor`` does."""
    from experiments.backends.environment_check import check_environment

    return check_environment()


def to_table(records: Any, *, arrow: bool = False) -> Any:
    """Return predictions, or a list of records such as ``runs()``, as a pandas DataFrame, or as an Arrow table.

    Args:
        records: ``SavedModel``, ``Predictions``, or records with fields.
        arrow: Whether to return a ``pyarrow.Table`` in any case.
    """
    import pyarrow as pa

    from fedge.knowledge.saved_model import SavedModel
    from fedge.types import Predictions

    found = records.predictions if isinstance(records, SavedModel) else records
    if isinstance(found, Predictions):
        return to_frame(pa.table(_list_columns(found)), arrow=arrow)
    each = [getattr(one, "row", one) for one in found]
    rows = [one if isinstance(one, Mapping) else dataclasses.asdict(one) for one in each]
    plain = [{key: _to_cell(value) for key, value in row.items()} for row in json.loads(json.dumps(rows, default=str))]
    return to_frame(pa.Table.from_pylist(plain), arrow=arrow)


def _to_cell(value: Any) -> Any:
    """Return a value for a table: lists and mappings as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _list_columns(predictions: Predictions) -> dict[str, Any]:
    knobs = dict(zip(("cores", "cpu_mhz", "gpu_mhz", "mem_mhz"), predictions.modes.knobs.T, strict=True))
    figures = ("step_s", "power_w", "step_s_sd_log", "power_w_sd_log")
    energy = {"energy_j": predictions.step_s * predictions.power_w}
    return {**knobs, **{name: getattr(predictions, name) for name in figures}, **energy}


# Parts of the above ---------------------------------------------------------------------------------------------------


def _resolve(experiment: Spec, changes: Sequence[tuple[str, Any]]) -> tuple[Experiment, Path]:
    """Return the resolved experiment, and the file that messages name."""
    if isinstance(experiment, str | Path):
        path = Path(experiment)
        raw = read_yaml_mapping(find_experiment_file(path), "a mapping of keys such as fleet, policy, rounds")
    else:
        path = IN_PYTHON
        raw = experiment.model_dump(mode="json") if isinstance(experiment, Experiment) else _to_plain(experiment)
    return build_experiment(raw, path, changes, option="", note=command_output.warn), path


def _to_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as YAML would give them: tuples are lists, paths text."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=_to_plain_value))
    except TypeError as error:
        raise BadInput("experiment", str(error), "numbers, text, lists and mappings, as in YAML") from error
    return plain


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise TypeError(f"{value!r} ({type(value).__name__})")


def _run_shown(execute: Callable[..., Any], experiment: Experiment, folder: Path, quiet: bool) -> Run:
    from experiments.report.run.live_terminal import LiveView

    with limit_to_one_thread(), _limit_loaded_libraries():
        if quiet:
            execute(experiment, folder, lambda: None)
        else:
            with LiveView(folder, experiment, command_output.make_console()) as view:
                execute(experiment, folder, view.refresh)
    return Run(folder)


def _limit_loaded_libraries() -> AbstractContextManager[Any]:
    """Let libraries that the caller has loaded use one thread as well: sums over several round differently."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(limits=1)
    return limits


@contextmanager
def _show_jobs(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    with nullcontext(_ignore) if quiet else command_output.show_job_progress(total) as report:
        yield report


def _ignore(_: str) -> None:
    """Take a report of progress that nobody wants."""


def _build_record(function: str, record: type[Any], given: Mapping[str, Any], **parts: Any) -> Any:
    """Return a record of options made of the keywords of a call of ``function``.

    Raises:
        UnknownName: If there is no such option.
    """
    known = [field.name for one in (record, *parts.values()) for field in dataclasses.fields(one)]
    odd = [name for name in given if name not in known or name in parts]
    if odd:
        raise UnknownName(function, odd[0], tuple(name for name in known if name not in parts))
    paths = {
        field.name
        for one in (record, *parts.values())
        for field in dataclasses.fields(one)
        if "Path" in str(field.type)
    }
    plain = {name: _to_paths(value) if name in paths else value for name, value in given.items()}
    return build_options(record, plain, others=(), **parts)


def _to_paths(value: Any) -> Any:
    return tuple(map(Path, value)) if isinstance(value, list | tuple) else None if value is None else Path(value)
