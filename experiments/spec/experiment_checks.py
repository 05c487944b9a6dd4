"""Checks an experiment before anything is written: all names must be known, all limits feasible on its boards."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.spec.backend_keys import check_backend_keys
from experiments.spec.resource_checks import (
    check_evaluation,
    check_loader,
    check_memory,
    check_serving,
    evaluation_label,
    link_label,
    loader_label,
    memory_label,
    serving_label,
)
from experiments.spec.user_plugins import import_plugins, try_own_functions
from fedge import registry, workloads
from fedge.client.round_state import count_steps
from fedge.costs.cost_profile import CostProfile, load_user_profiles
from fedge.costs.cost_scaling import list_priced_workloads, load_workload_sizes
from fedge.costs.layered_work import count_priced_bytes
from fedge.decisions.planning import PLANNERS
from fedge.decisions.policies import load_policy
from fedge.decisions.policies.policy_options import check_policy_options
from fedge.decisions.selection import SELECTORS, load_selector
from fedge.decisions.selection.fedzero import EXCESS_SELECTOR
from fedge.decisions.selection.selector_options import check_options, complete_options
from fedge.devices import catalogue
from fedge.devices.availability import read_availability_trace
from fedge.devices.board_kinds import (
    TABLE_PREFIX,
    BoardKind,
    build_kind,
    build_knowledge,
    build_link,
    load_references,
)
from fedge.devices.energy_signal import START, build_signal
from fedge.errors import BadInput, FedgeError, UnknownName, check_known, prefix_errors
from fedge.experiment import (
    AvailabilitySpec,
    Experiment,
    FleetBoard,
    FleetEntry,
    StrategySpec,
    list_boards,
)
from fedge.extras import require_modules
from fedge.knowledge.evidence_files import describe_reference, identify_client, is_of_client, read_evidence
from fedge.modes import stack_modes
from fedge.predictors import DEFAULT_PREDICTOR, FROM_OTHER_WORKLOADS, PREDICTORS, load_predictor
from fedge.protocols import LearningTask
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Modes, ProfileTable, TrainOptions, fitted_label, weakest_label
from fedge.worker.builtin_tasks import TASKS
from fedge.workloads import NULL_TASK, load_experiment_task
from fedge.workloads.datasets import translate_refusals
from fedge.workloads.partitions import split_task
from fedge.workloads.rate_schedule import check_schedule
from fedge.yaml_files import format_value

STRATEGY_SELECTION_OPTIONS = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
)
"""Options of Flower's strategies that select a round's clients; in fedge the coordinator does that."""
KNOB_TOLERANCE = 0.02
"""Relative difference up to which a table's clock counts as the catalogue's (rounding)."""
FLEET_BACKEND = "fleet"
"""Name of the backend for real boards."""
NEAR_KNOB, FEW = 0.05, 0.1
"""Tolerance for releases with slightly different clocks: a share FEW of a knob's values may be off by NEAR_KNOB.

Defaults: the table of another board differs by more, or in more values, in at least one knob.
"""


def require_libraries(experiment: Experiment, command: str) -> None:
    """Check that the libraries of an experiment's run are installed, before any of them is imported.

    Raises:
        MissingPackage: Naming all that are missing.
    """
    task = experiment.workload.task
    own = TASKS.get(task)
    libraries = ["flwr"]
    if experiment.backend == "sim":
        libraries.append("ray")
    if own is not None or task.endswith(workloads.TASK_FILE_SUFFIX):
        libraries.append("torch")
    if own is not None and own.dataset == "digits":
        libraries.append("sklearn")
    if experiment.selection.name == "fedjoule-like":
        libraries.append("scipy")
    require_modules(command, *libraries)


def check_experiment(experiment: Experiment) -> None:
    """Check an experiment completely; loads its data set and plug-ins.

    Raises:
        BadInput: For the first error, naming its field.
    """
    import_plugins(experiment)
    if experiment.backend == "flower":
        right = "local, sim or fleet: such a run is started by `flwr run`"
        raise BadInput("backend", "'flower', the rows of a Flower app", right)
    check_backend_keys(experiment)
    if experiment.backend == FLEET_BACKEND:
        _check_real_boards(experiment)
    _check_workstations(experiment)
    _check_fleet(experiment)
    check_loader(experiment)
    check_serving(experiment)
    workloads.check_task(experiment.workload.task)
    check_schedule(experiment.workload, experiment.rounds)
    _check_predictor(experiment)
    _check_strategy(experiment.strategy, "strategy")
    _check_policy(experiment)
    _check_selection(experiment)
    _check_availability(experiment)
    _check_signal(experiment)
    _check_limits(experiment, _check_data(experiment))
    check_memory(experiment)
    check_evaluation(experiment)
    try_own_functions(experiment)


def _check_real_boards(experiment: Experiment) -> None:
    """Raise ``BadInput`` for a SuperLink that cannot be right, and for a task that a worker cannot load."""
    from experiments.fleet import superlink_check

    superlink_check.check_superlink(experiment.superlink)
    task = experiment.workload.task
    if task == NULL_TASK:
        right = "a task that boards can train: real boards simulate nothing (backend sim or local does)"
        raise BadInput("workload.task", repr(task), right)
    if ":" in task:
        right = "one of fedge's tasks or a task file (.py): a board's worker cannot load a module of yours"
        raise BadInput("workload.task", repr(task), right)


def _check_workstations(experiment: Experiment) -> None:
    """Raise ``BadInput`` for a GPU workstation that is emulated, or with fields that need a board of the catalogue."""
    for i, entry in enumerate(experiment.fleet):
        if catalogue.is_catalogued(entry.device):
            continue
        if experiment.backend != FLEET_BACKEND:
            right = "a board of the catalogue, or `backend: fleet`, where it is a real machine: it cannot be emulated"
            raise BadInput(f"fleet[{i}].device", repr(entry.device), right)
        needs = {"references": entry.references, "serving": entry.serving}
        for field in (field for field, given in needs.items() if given):
            right = "nothing: only boards of the catalogue have it"
            raise BadInput(f"fleet[{i}].{field}", format_value(getattr(entry, field)), right)
        if experiment.evaluation.by != "server":
            got = f"{experiment.evaluation.by!r}, with a GPU workstation at fleet[{i}]"
            raise BadInput("evaluation.by", got, "server: what an evaluation costs there is not known")


def _list_catalogued(experiment: Experiment) -> list[FleetBoard]:
    """Return the boards about which something is known before they answer."""
    return [board for board in list_boards(experiment) if catalogue.is_catalogued(board.entry.device)]


def _check_callable(where: str, name: str, table: Mapping[str, str]) -> None:
    plugin = registry.load_named(where, name, table)
    if not callable(plugin):
        raise BadInput(where, repr(name), f"a function or a class, not a {type(plugin).__name__}")


def _check_predictor(experiment: Experiment) -> None:
    """Raise ``BadInput`` for a predictor that cannot predict before the first measurement, i.e. the first round."""
    name = experiment.predictor
    _check_callable("predictor", name, PREDICTORS)
    boards, workload = _list_catalogued(experiment), experiment.workload
    if not boards:
        return
    kind, board = build_kind(boards[0], workload), boards[0]
    knowledge = build_knowledge(kind, load_references(board, workload), None)
    try:
        load_predictor(name, knowledge).fit([]).predict(stack_modes([kind.average.modes[0]]))
    except Exception as error:
        reason = str(error) if isinstance(error, FedgeError) else registry.describe_failure(error)
        raise BadInput("predictor", repr(name), f"one that predicts before any measurement ({reason})") from error


def _check_strategy(strategy: StrategySpec, where: str) -> None:
    """Check the fields of a strategy without importing Flower; ``strategy_check`` does the rest."""
    if ":" in strategy.name:
        _check_callable(f"{where}.name", strategy.name, {})
    for option, value in strategy.options.items():
        if option in STRATEGY_SELECTION_OPTIONS:
            right = "no such option: `selection` says who takes part in a round"
            raise BadInput(f"{where}.options.{option}", format_value(value), right)
    if strategy.wraps is not None:
        _check_strategy(strategy.wraps, f"{where}.wraps")


def _check_fleet(experiment: Experiment) -> None:
    known = list_priced_workloads()
    for i, entry in enumerate(experiment.fleet):
        if catalogue.is_catalogued(entry.device):
            _check_device(entry.device, f"fleet[{i}].device")
        if entry.truth != "model" and not (entry.truth.startswith(TABLE_PREFIX) and entry.truth != TABLE_PREFIX):
            raise BadInput(f"fleet[{i}].truth", repr(entry.truth), "`model`, or `table:PATH` of a measured table")
        if entry.cost is not None and entry.cost not in known:
            raise UnknownName(f"fleet[{i}].cost", entry.cost, known)
    if experiment.workload.cost not in known and experiment.workload.network is None:
        raise UnknownName("workload.cost", experiment.workload.cost, known)
    names: set[str] = set()
    for board in list_boards(experiment):
        if board.name in names:
            right = "boards of a name of their own: give the fleet entries a `name`"
            raise BadInput("fleet", f"two boards called {board.name!r}", right)
        names.add(board.name)
    firsts = {(board.entry, board.truth): board for board in reversed(_list_catalogued(experiment))}
    for (entry, _), board in reversed(firsts.items()):
        _check_tables(experiment, board, f"fleet[{experiment.fleet.index(entry)}]")


def _check_device(device: str, where: str) -> None:
    """Check a board of the catalogue or the user's board file; for a file, messages also name the field."""
    with prefix_errors(where):
        catalogue.find(device, where=where)


def _check_tables(experiment: Experiment, board: FleetBoard, where: str) -> None:
    """Check that measured tables are readable and belong to this board; messages name both field and file."""
    truth, workload = board.truth, experiment.workload
    if not truth.startswith(TABLE_PREFIX):
        kind = build_kind(board, workload)
    else:
        table = truth.removeprefix(TABLE_PREFIX)
        _check_workload(table, board.entry, workload.cost, f"{where}.truth")
        with prefix_errors(f"{where}.truth"):
            kind = build_kind(board, workload)
            _check_knobs(table, kind.average.modes, kind.spec)
    if board.entry.references:
        _check_references(experiment, board, kind.spec, where)


def _check_references(experiment: Experiment, board: FleetBoard, spec: DeviceSpec, where: str) -> None:
    client, others = identify_client(experiment, board), []
    for place, path in enumerate(board.entry.references):
        with prefix_errors(f"{where}.references[{place}]"):
            entry = describe_reference(Path(path), board, client)
            rows = [m.mode for one in read_evidence(Path("/"), entry) for m in one.measurements]
            _check_knobs(path, stack_modes(rows), spec)
        others += [] if is_of_client(entry, client) else [entry.workload]
    if others and len(others) == len(board.entry.references) and not _learns_from_others(experiment.predictor):
        right = f"a file of {client.workload} at batch size {client.batch_size}, or predictor: {DEFAULT_PREDICTOR}"
        got = f"{', '.join(others)}, of which the predictor {experiment.predictor} learns nothing"
        raise BadInput(f"{where}.references", got, right)


def _learns_from_others(predictor: str) -> bool:
    return predictor not in PREDICTORS or predictor in FROM_OTHER_WORKLOADS


def describe_other_references(experiment: Experiment) -> Iterator[str]:
    """Yield a line for every file under ``references`` of another workload, or batch size, than the boards train."""
    known = {*load_workload_sizes(), *(profile.workload for profile in load_user_profiles())}
    effect = "the predictor learns from it as from another workload"
    if not _learns_from_others(experiment.predictor):
        effect = f"left out, the predictor {experiment.predictor} learns nothing from other workloads"
    for name, board in reversed(_first_boards(experiment).items()):
        for path in board.entry.references:
            client = identify_client(experiment, board)
            entry = describe_reference(Path(path), board, client)
            if is_of_client(entry, client):
                continue
            strange = "" if entry.workload in known else " (the file's name; fedge knows no such workload)"
            found = f"{entry.workload}{strange} at batch size {entry.batch_size}"
            trained = f"{client.workload} at batch size {client.batch_size}"
            yield f"reference {Path(path).name} of {name}: of {found}, not of {trained}; {effect}"


def _check_workload(table: str, entry: FleetEntry, cost: str, where: str) -> None:
    named, priced = Path(table).stem, entry.cost or cost
    if named in load_workload_sizes() and named != priced:
        key = "workload.cost" if entry.cost is None else where.replace("[", ".").replace("].truth", ".cost")
        right = f"a table of {priced}, or --set {key}={named}: the priors leave out the workload that is named"
        raise BadInput(where, f"a table of {named}", right)


def _check_knobs(table: str, modes: Modes, spec: DeviceSpec) -> None:
    """Raise ``BadInput`` for a table with clocks that the board does not have: it belongs to another board."""
    own = {"cores": spec.cores, "cpu_khz": spec.cpu_mhz, "gpu_hz": spec.gpu_mhz, "mem_hz": spec.mem_mhz}
    for knob, (column, known) in enumerate(own.items()):
        values = sorted(set(modes.knobs[:, knob].tolist()))
        off = {value: min(abs(value / k - 1.0) for k in known) for value in values}
        strange = [value for value in values if off[value] > KNOB_TOLERANCE]
        few = len(strange) <= FEW * len(values)
        for value in strange:
            if off[value] > NEAR_KNOB or not few:
                right = f"what {spec.name} has, from {min(known):g} to {max(known):g}; is it this board's table?"
                raise BadInput(f"{table}: {column}", f"{value:g}{'' if column == 'cores' else ' MHz'}", right)


def _try_step(experiment: Experiment, task: LearningTask) -> None:
    """Train one step, so that an error in the user's file appears once before the run instead of on every board."""
    work = experiment.workload
    few = np.arange(min(work.batch_size, len(task.labels)), dtype=np.int64)
    options = TrainOptions(1, work.batch_size, work.learning_rate, work.momentum)
    task.start(task.initial_arrays(experiment.seed), few, experiment.seed, options).advance(1)


def _check_data(experiment: Experiment) -> tuple[int, ...]:
    """Load the data set, check that it suffices for the fleet, and return the number of samples of each board.

    The data set stays cached in this process.
    """
    name, samples = experiment.workload.task, experiment.data.samples
    if samples is not None and name != NULL_TASK:
        right = f"nothing: {name} has samples of its own, this is for the task {NULL_TASK}"
        raise BadInput("data.samples", str(samples), right)
    try:
        task = load_experiment_task(experiment)
        if name.endswith(workloads.TASK_FILE_SUFFIX):
            with translate_refusals():
                _try_step(experiment, task)
    except FedgeError:
        raise
    except Exception as error:  # the user's own task
        got = f"{name}, which fails: {registry.describe_failure(error)}"
        is_file = name.endswith(workloads.TASK_FILE_SUFFIX)
        right = "functions that fit each other and the data" if is_file else "a working task"
        raise BadInput("workload.task", got, right) from error
    shares = split_task(
        experiment.data, task, len(list_boards(experiment)), make_generator(experiment.seed, "partition")
    )
    counts = tuple(len(share) for share in shares)
    _check_batch_size(experiment, counts)
    return counts


def _check_batch_size(experiment: Experiment, samples: Sequence[int]) -> None:
    """Refuse a batch that no client can fill: its steps would be priced as if they were that large."""
    size, most = experiment.workload.batch_size, max(samples)
    if experiment.workload.task == NULL_TASK:  # stands for any data set: what a share has is not trained on
        most = sum(samples)
    if size > most:
        right = f"from 1 to {most}, the samples of the largest share; less where memory is short"
        raise BadInput("workload.batch_size", str(size), right)


def _check_policy(experiment: Experiment) -> None:
    policy = experiment.policy
    if policy.name.rstrip(":") == "preset":
        raise BadInput("policy.name", repr(policy.name), "preset:NAME, a preset of the boards, e.g. preset:MAXN")
    load_policy(policy.name, "policy.name")
    check_policy_options(policy, "policy.", "--set policy.")
    base, _, preset = policy.name.partition(":")
    if base == "preset":
        _check_presets(experiment, preset)
    for field, limit_w in (("power_w", policy.power_w), ("fleet_power_w", policy.fleet_power_w)):
        if limit_w is not None:
            _check_reachable(f"policy.{field}", limit_w, "W", dict(_min_power_by_entry_w(experiment)))


def _check_selection(experiment: Experiment) -> None:
    """Check that the selector exists, accepts these options and finds enough boards."""
    selection, fleet = experiment.selection, len(list_boards(experiment))
    load_selector(selection.name)
    check_options(selection.name, selection.options)
    if selection.name == "pyramidfl-like" and experiment.policy.name in PLANNERS:
        right = "a policy that does not plan the round, such as maxn: the selector gives the clients more steps itself"
        raise BadInput("policy.name", repr(experiment.policy.name), right)
    if selection.count is None:
        if selection.over_commit > 1.0:
            right = "1, or a selection.count: without one every board is asked"
            raise BadInput("selection.over_commit", f"{selection.over_commit:g}", right)
        return
    if selection.count > fleet:
        raise BadInput("selection.count", str(selection.count), f"from 1 to {fleet}, the boards of the fleet")
    if selection.name == "all" and selection.count < fleet:
        others = ", ".join(name for name in SELECTORS if name != "all")
        right = f"none, because `all` takes every board, or a selection.name that chooses: {others}"
        raise BadInput("selection.count", str(selection.count), right)


def _check_availability(experiment: Experiment) -> None:
    """Check that every board is present with a sufficient battery at some time, as far as traces tell."""
    for i, entry in enumerate(experiment.fleet):
        spec, battery = entry.availability, entry.battery
        if spec is not None:
            names = [board.name for board in list_boards(experiment) if board.entry == entry]
            _check_presence(spec, names, f"fleet[{i}].availability")
        if battery is not None and battery.charging_w == 0 and battery.charge < battery.floor:
            right = f"at least its floor of {battery.floor:g}, or a charging_w: it would never take part"
            raise BadInput(f"fleet[{i}].battery.charge", f"{battery.charge:g}", right)


def _check_signal(experiment: Experiment) -> None:
    """Check the signal's file, every board's zone in it, and that the selector that waits for a low value finds one."""
    found, selection = build_signal(experiment), experiment.selection
    if selection.name != EXCESS_SELECTOR:
        return
    if found is None:
        right = f"a CSV file of {START} and a column per zone: {EXCESS_SELECTOR} selects while its values are low"
        raise BadInput("signal", "nothing", right)
    if experiment.backend == FLEET_BACKEND:
        right = "another selector, or emulated boards (backend sim or local): real ones do not wait for a low signal"
        raise BadInput("selection.name", repr(selection.name), right)
    threshold = complete_options(EXCESS_SELECTOR, selection.options)["threshold"]
    least = min(found.least_price(board.name) for board in list_boards(experiment))
    if least > threshold:
        right = f"at least {math.ceil(1000 * least) / 1000:g}, the boards' least value relative to the signal's mean"
        raise BadInput("selection.options.threshold", f"{threshold:g}", right)


def _check_presence(spec: AvailabilitySpec, names: Sequence[str], where: str) -> None:
    """Check that either a trace that covers every board or mean on and off times are given."""
    if spec.trace is None:
        if spec.on_s is None or spec.off_s is None:
            missing = "on_s" if spec.on_s is None else "off_s"
            raise BadInput(f"{where}.{missing}", "nothing", "both on_s and off_s, or a trace")
        return
    if spec.on_s is not None or spec.off_s is not None:
        raise BadInput(f"{where}.trace", repr(spec.trace), "a trace, or on_s and off_s, not both")
    with prefix_errors(f"{where}.trace"):
        traced = read_availability_trace(Path(spec.trace))
        absent = [name for name in names if name not in traced]
        if absent:
            raise BadInput(spec.trace, f"no line of {absent[0]}", "a line for every board of the entry")


def _check_presets(experiment: Experiment, preset: str) -> None:
    for board in _list_catalogued(experiment):
        presets = build_kind(board, experiment.workload).spec.presets
        check_known(f"policy.name: preset of {board.entry.device}", preset, presets)


def _check_limits(experiment: Experiment, samples: Sequence[int]) -> None:
    """Compare the energy and time limits of a round with the minimum of work and transfers, without waiting.

    If partial work counts, one step is enough to meet a deadline. Transfers of real boards are not known beforehand.
    """
    policy = experiment.policy
    if policy.round_energy_j is None and policy.deadline_s is None:
        return
    least_j: dict[str, float] = {}
    least_s: dict[str, float] = {}
    for board, count in zip(list_boards(experiment), samples, strict=True):
        if not catalogue.is_catalogued(board.entry.device):
            return  # it may keep any limit
        name, surface = board.name.rpartition("-")[0], build_kind(board, experiment.workload).average
        steps = count_steps(count, experiment.workload.batch_size, experiment.workload.local_epochs)
        timed = 1 if experiment.late.action == "partial" else steps
        known = None if experiment.backend == FLEET_BACKEND else count_priced_bytes(board.entry, experiment.workload)
        link = build_link(board.entry.link).transfer(known or 0.0, known or 0.0)
        work_j = steps * float((surface.power_w * surface.step_s).min())
        work_s = timed * float(surface.step_s.min())
        least_j[name] = min(least_j.get(name, math.inf), link.radio_j + work_j)
        least_s[name] = min(least_s.get(name, math.inf), link.down_s + work_s + link.up_s)
    if policy.round_energy_j is not None:
        _check_reachable("policy.round_energy_j", policy.round_energy_j, "J", least_j)
    if policy.deadline_s is not None:
        _check_reachable("policy.deadline_s", policy.deadline_s, "s", least_s)


def _check_reachable(where: str, limit: float, unit: str, least: Mapping[str, float]) -> None:
    """Raise ``BadInput`` for a limit that no board can meet; one that only some miss is allowed.

    ``least`` is the minimum need per fleet entry, for the average board of its kind.
    """
    if limit < min(least.values()):
        # Rounded up: the figure that the message names has to be accepted.
        figures = ", ".join(f"{name} from {math.ceil(100 * needed) / 100:.2f} {unit}" for name, needed in least.items())
        raise BadInput(where, f"{limit:g} {unit}", f"a limit that a board can keep: {figures}")


def _min_power_by_entry_w(experiment: Experiment) -> Iterator[tuple[str, float]]:
    for name, board in _first_boards(experiment).items():
        known = catalogue.is_catalogued(board.entry.device)
        yield name, float(build_kind(board, experiment.workload).average.power_w.min()) if known else 0.0


def _first_boards(experiment: Experiment) -> dict[str, FleetBoard]:
    """Return the first board of every fleet entry, by the common prefix of its boards' names."""
    return {board.name.rpartition("-")[0]: board for board in reversed(list_boards(experiment))}


def boards_over_power_limit(experiment: Experiment) -> tuple[FleetBoard, ...]:
    """Return the boards that exceed the policy's power limit even in their lowest mode, for a warning."""
    limit_w = experiment.policy.power_w
    if limit_w is None:
        return ()
    least = dict(_min_power_by_entry_w(experiment))
    return tuple(board for board in list_boards(experiment) if least[board.name.rpartition("-")[0]] > limit_w)


MEASURED_ON_BOARD = {"label": "measured", "source": "the board itself"}
RECORDED_FOLDER = {"label": "estimated", "source": "a recorded folder, no board"}
"""Provenance of a real board's measurements."""


def build_labels(
    experiment: Experiment, recorded: Collection[str] = (), real: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Describe per fleet entry the provenance of its true costs and of its predictor's prior.

    Args:
        recorded: Boards of a real fleet that were replayed from a recorded folder, so that nothing was measured.
        real: Real boards of a Flower app; on a fleet all are.

    Returns:
        By the common prefix of the entry's board names, the labels ``truth``, ``prior`` etc. with ``label`` and
        ``source``.
    """
    labels = {name: _label_board(experiment, board) for name, board in reversed(_first_boards(experiment).items())}
    boards = [board.name for board in list_boards(experiment)]
    emulated = set[str]() if experiment.backend == FLEET_BACKEND else _entry_names(set(boards).difference(real))
    folders = _entry_names(recorded)
    return {
        name: label
        if name in emulated
        else label | {"truth": RECORDED_FOLDER if name in folders else MEASURED_ON_BOARD}
        for name, label in labels.items()
    }


def _entry_names(boards: Iterable[str]) -> set[str]:
    return {board.rpartition("-")[0] for board in boards}


def _label_board(experiment: Experiment, board: FleetBoard) -> dict[str, Any]:
    is_app = experiment.backend == "flower"  # of whose own model nothing is known but what its steps are priced as
    moved = {} if is_app else link_label(experiment, board.entry)
    if not catalogue.is_catalogued(board.entry.device):
        prior = {"label": "estimated", "source": "Jetsons, scaled to the GPUs' power limit by the machine itself"}
        return {"device": board.entry.device, "count": board.entry.count, "prior": prior, **moved}
    kind = build_kind(board, experiment.workload)
    label = _build_label(board, kind, load_references(board, experiment.workload))
    if is_app:
        return label
    trained = memory_label(experiment, board.entry) | evaluation_label(experiment, board, kind.spec)
    return label | trained | moved


def _build_label(board: FleetBoard, kind: BoardKind, references: Sequence[ProfileTable]) -> dict[str, Any]:
    learnt_from = [prior.label for prior in kind.priors] + [fitted_label(table.label) for table in references]
    prior = weakest_label(learnt_from)
    known = (_describe_priors(kind.priors), *(_describe_reference(table) for table in references))
    return {
        "device": kind.spec.name,
        "count": board.entry.count,
        "truth": {"label": kind.truth_label, "source": kind.truth_source} | _build_error_label(kind.cost),
        "prior": {"label": prior, "source": "; ".join(known)},
        **serving_label(board, kind.spec),
        **loader_label(board),
    }


def _build_error_label(cost: CostProfile | None) -> dict[str, Any]:
    """Return the expected errors of an estimate from layers; empty for other costs."""
    if cost is None or not (cost.time_error_log or cost.power_error_log):
        return {}
    return {"time_error": cost.time_error_log, "power_error": cost.power_error_log}


def build_link_labels(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Describe per fleet entry what a step is priced as, and the models that are moved and trained."""
    return {name: link_label(experiment, board.entry) for name, board in reversed(_first_boards(experiment).items())}


def _describe_reference(table: ProfileTable) -> str:
    return f"reference table {Path(table.path).name} ({len(table.modes)} rows, {table.label})"


def _describe_priors(priors: Sequence[CostProfile]) -> str:
    """Describe the predictor's prior, e.g. ``yolov8n-coco and 4 other workloads, carried by ...``."""
    layers = [prior.source.partition(",")[0] for prior in priors if prior.source.startswith("layers of ")]
    carried = [prior for prior in priors if not prior.source.startswith("layers of ")]
    names = tuple(dict.fromkeys(prior.source.partition(" on ")[0] for prior in carried))
    others = f" and {len(names) - 1} other workloads" if len(names) > 1 else ""
    return "; ".join([*layers, f"{names[0]}{others}, carried by data-sheet ratios"])
