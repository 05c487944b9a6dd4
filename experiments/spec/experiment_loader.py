"""Loads an experiment: resolves YAML and overrides into a validated record, with one clear message per error."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments.spec.backend_keys import drop_backend_keys
from fedge.analysis.placement.planned_service import read_planned_service
from fedge.analysis.topology.variant_files import read_variant, variant_to_dict
from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layers.network_cost import NetworkCost
from fedge.costs.layers.network_record import format_layers
from fedge.costs.layers.network_source import MODEL_FILES, VARIANT_FORMAT, load_network_cost
from fedge.decisions.policies.policy_options import POLICY_OPTIONS
from fedge.errors import BadInput, list_known
from fedge.experiment import (
    VARIANT_FILE,
    Experiment,
    FleetEntry,
    NetworkSpec,
    PolicySpec,
    WorkloadSpec,
    label_network,
)
from fedge.json_reader import read_json
from fedge.telemetry.run_folder import RUN_YAML
from fedge.worker.builtin_tasks import TASKS
from fedge.worker.refusal import Refusal
from fedge.workloads import TASK_FILE_SUFFIX, load_experiment_task
from fedge.yaml_files import format_value, parse_yaml, read_yaml_mapping, validate_fields

if TYPE_CHECKING:
    from fedge.workloads.image_task import ImageTask

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""The experiments that fedge brings along."""
NAME_ONLY_KEYS = {"policy": "name", "strategy": "name", "selection": "name", "compression": "kind", "signal": "trace"}
"""Keys whose value may be a bare name instead of a mapping, with the field that the name stands for."""
NAME_ONLY_FIELDS = {**NAME_ONLY_KEYS, "network": "model"}
"""Keys at any level that accept a bare name, with the field that the name stands for."""
NAME_ONLY_LISTS = {"fleet": "device", "exporters": "name", "mods": "name"}
"""Keys of lists whose items may be bare names, with the field that the name stands for."""
NETWORK_FIELD = re.compile(
    r"(?:workload|fleet\.(?P<place>\d+)\.serving)\.network(?:\.model|\.input)?|fleet\.(?P<planned>\d+)\.serving\.placement"
)
"""Overriding one of these invalidates the stored layers of a network, or what a plan gave."""
LOADER_FIELD = re.compile(r"fleet\.(?P<place>\d+)\.loader\.model")
"""Overriding one of these invalidates the stored hash of the loader's file."""
OWN_TASK_FIELDS = {"workload.task", "workload.cost", "workload.mixed_precision", "data.dir"}
"""Overriding one of these invalidates the stored layers of a task that is priced by its own network."""
OWN_METRIC = re.compile(r"^def metric\(", re.MULTILINE)
"""What a task file has if its figure of merit is its own."""


def load_experiment(
    path: Path, overrides: Sequence[str] = (), note: Callable[[str], None] = lambda _: None
) -> Experiment:
    """Load an experiment from YAML, with overrides as in ``parse_override``.

    Args:
        path: The file, or the name of one that fedge brings along, such as ``quickstart``; paths in overrides of the
            latter are relative to the current folder, as if it were a file there.
        overrides: ``KEY=VALUE`` texts, which replace the file's keys.
        note: Called with a sentence on what an override removes.

    Raises:
        BadInput: For the first error, naming file and field.
    """
    raw = read_yaml_mapping(find_experiment_file(path), "a mapping of keys such as fleet, policy, rounds")
    if "experiment" in raw and "fleet" not in raw:
        raise BadInput(
            str(path), "the file of a sweep", f"the file of an experiment; `fedge sweep {path}` runs a sweep"
        )
    return build_experiment(raw, path, [parse_override(override) for override in overrides], note=note)


def build_experiment(
    raw: dict[str, Any],
    path: Path,
    overrides: Iterable[tuple[str, Any]] = (),
    *,
    option: str = "--set ",
    note: Callable[[str], None] = lambda _: None,
) -> Experiment:
    """Build an experiment from a mapping like that of a YAML file.

    Args:
        raw: The mapping, which the overrides change.
        path: Its file, which messages name; paths in the mapping are relative to its folder.
        overrides: Keys such as ``policy.power_w``, each with its value.
        note: Called with a sentence on what an override removes.

    Raises:
        BadInput: For the first error, naming file and field.
    """
    changes = _keep_own_options(list(overrides))
    _keep_optimizer_state(raw, path)
    _drop_policy_options(raw, changes, note)
    _drop_backend_keys(raw, changes, note)
    for key, _ in changes:  # before any is set: what the user gives is never stale
        _drop_stale_layers(raw, key)
    for key, value in changes:
        set_field(raw, key, value, option)
    with blame_overrides(path, [key for key, _ in changes], option):
        _drop_narrow_width(raw, path)
        experiment = add_network_layers(resolve_experiment(raw, path), str(path))
        if "optimizer_state" not in raw.get("workload", {}):
            experiment = _add_optimizer_state(experiment)
    return experiment.model_copy(update={"fleet": tuple(_add_loader_hash(entry) for entry in experiment.fleet)})


def _keep_optimizer_state(raw: Mapping[str, Any], path: Path) -> None:
    """Let a saved run go on with the optimiser's state that it began with; earlier versions took every one as SGD's.

    So reading a run never runs its task file for that, nor counts again what could not be counted.
    """
    workload = raw.get("workload")
    if path.name == RUN_YAML and isinstance(workload, dict) and str(workload.get("task")).endswith(TASK_FILE_SUFFIX):
        workload.setdefault("optimizer_state", 1.0)


def _add_optimizer_state(experiment: Experiment) -> Experiment:
    """Return the experiment with the state of its task file's optimiser counted, SGD's if it has none of its own.

    It stays unknown if the file cannot be read or its optimiser not be counted.
    """
    work = experiment.workload
    if not work.task.endswith(TASK_FILE_SUFFIX):
        return experiment
    with suppress(OSError, UnicodeError, Refusal):  # the checks of a run refuse a task that cannot be loaded
        text = Path(work.task).read_text(encoding="utf-8")
        state = _count_task_optimizer(work.task, text) if "optimizer" in text else 1.0
        return experiment.model_copy(update={"workload": work.model_copy(update={"optimizer_state": state})})
    return experiment


def _count_task_optimizer(name: str, text: str) -> float | None:
    from fedge.costs.memory.optimizer_state import count_optimizer_state
    from fedge.worker.tasks import task_from_source

    made = task_from_source(name, text, hashlib.sha256(text.encode("utf-8")).hexdigest()).optimizer
    return 1.0 if made is None else count_optimizer_state(made)


def _drop_narrow_width(raw: Mapping[str, Any], path: Path) -> None:
    """Remove a key of an earlier version, which is in every saved run of it; raise ``BadInput`` if it has a value."""
    policy = raw.get("policy")
    if not isinstance(policy, dict) or "narrow_width" not in policy:
        return
    if (width := policy.pop("narrow_width")) is not None:
        right = "no such key any more: joint chooses among workload.memory.widths"
        raise BadInput(f"{path}: policy.narrow_width", format_value(width), right)


@contextmanager
def blame_overrides(path: Path, keys: Iterable[str], option: str = "--set ") -> Iterator[None]:
    """Name the option instead of the file ``path`` in a ``BadInput`` for a field that an override changed.

    Args:
        path: The file, which such an error names before the field.
        keys: The overrides' keys, such as ``fleet.0.count``.
        option: Text before the field in messages.
    """
    try:
        yield
    except BadInput as error:
        field = error.where.removeprefix(f"{path}: ")
        dotted = re.sub(r"\[(\d+)\]", r".\1", field)
        if not any(f"{dotted}.".startswith(f"{key}.") for key in keys):
            raise
        raise BadInput(f"{option}{field}", error.got, error.right) from error


def find_experiment_file(path: Path) -> Path:
    """Return a path as it is, or the file of the experiment that fedge brings along under this name.

    Raises:
        BadInput: If there is neither.
    """
    with suppress(OSError):  # a name that is too long for a file is none of ours either
        if path.exists():
            return path
    files = {file.stem: file for file in CONFIGS.glob("*.yaml")}
    shipped = {name: file for name, file in files.items() if "\nfleet:" in file.read_text(encoding="utf-8")}  # no sweep
    if str(path) not in shipped:
        near = sorted(file for file in path.parent.glob(f"{glob.escape(path.stem)}.y*ml") if file.is_file())
        known = list_known(str(path), sorted(shipped), "a YAML file, or a name: ")
        raise BadInput(str(path), "no such file", f"do you mean {near[0]}?" if near else known)
    return shipped[str(path)]


def _add_loader_hash(entry: FleetEntry) -> FleetEntry:
    """Return the entry with the hash of its fitted loader's file, unless it has one or the file cannot be read."""
    spec = entry.loader
    if spec is None or spec.model is None or spec.sha256 is not None or not Path(spec.model).is_file():
        return entry
    digest = hashlib.sha256(Path(spec.model).read_bytes()).hexdigest()
    return entry.model_copy(update={"loader": spec.model_copy(update={"sha256": digest})})


def _keep_own_options(changes: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Move the options of a policy that stand before ``policy=NAME`` behind it: it replaces the file's options only."""
    named = [place for place, (key, value) in enumerate(changes) if key == "policy" and isinstance(value, str)]
    if not named:
        return changes
    before, rest = changes[: named[-1]], changes[named[-1] + 1 :]
    own = [one for one in before if one[0].startswith("policy.") and one[0] != "policy.name"]
    return [*(one for one in before if one not in own), changes[named[-1]], *own, *rest]


def _drop_policy_options(raw: dict[str, Any], changes: Sequence[tuple[str, Any]], note: Callable[[str], None]) -> None:
    """Remove the options of the file's policy that ``policy.name=NAME`` does not take, and all for ``policy=NAME``."""
    policy = raw.get("policy")
    named = [(key, value) for key, value in changes if key in {"policy", "policy.name"} and isinstance(value, str)]
    if not isinstance(policy, dict) or not named:
        return
    old, new = policy.get("name", PolicySpec().name), named[-1][1]
    replaced = any(key == "policy" for key, _ in named)
    taken = POLICY_OPTIONS.get(new.partition(":")[0])
    if taken is None and ":" not in new:
        return  # no policy has this name, which is refused later
    if not replaced and (new == old or taken is None):
        return
    kept = () if replaced else taken or ()
    dropped = [name for name, value in policy.items() if name not in {"name", *kept} and value not in (None, {})]
    given = {key.removeprefix("policy.") for key, _ in changes}
    if lost := [name for name in dropped if name not in given]:
        is_taken = taken is None or not set(lost).isdisjoint(taken)
        reason = f"policy.name={new} instead keeps what {new} takes" if is_taken else f"{new} takes no such option"
        note(describe_lost_options(lost, old, reason))
    for name in dropped:
        del policy[name]


def describe_lost_options(lost: Sequence[str], policy: str, reason: str) -> str:
    """Return the note on options of the file's policy that another policy does not have."""
    return f"{', '.join(lost)} of the file's policy {policy} left out: {reason}"


def _drop_backend_keys(raw: dict[str, Any], changes: Sequence[tuple[str, Any]], note: Callable[[str], None]) -> None:
    """Remove the keys of the file that only say how its own backend runs, if another one is named."""
    named = [value for key, value in changes if key == "backend" and isinstance(value, str)]
    if named and (dropped := drop_backend_keys(raw, named[-1])):
        note(f"{', '.join(dropped)} of the file left out: the backend {named[-1]} does not use it")


def _drop_stale_layers(raw: Mapping[str, Any], field: str) -> None:
    """Remove what was filled in for a saved run's network, task or loader if the override selects another one."""
    workload = raw.get("workload")
    if field == "workload.task" and isinstance(workload, dict):
        workload.pop("optimizer_state", None)
    if field in OWN_TASK_FIELDS and isinstance(workload, dict):
        own = workload.get("network")
        if isinstance(own, dict) and own.get("model") == workload.get("task"):
            del workload["network"], workload["cost"]
        elif isinstance(own, dict) and own.get("channels"):
            _forget_layers(own)
    if (found := LOADER_FIELD.fullmatch(field)) is not None:
        _find_entry_section(raw, found["place"], "loader").pop("sha256", None)
    found = NETWORK_FIELD.fullmatch(field)
    if found is None:
        return
    place = found["place"] or found["planned"]
    section = workload if place is None else _find_entry_section(raw, place, "serving")
    network = section.get("network") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(network, dict):
        return
    _forget_layers(network)
    if section.get("cost") == label_network(str(network.get("model"))):
        del section["cost"]
    if field.endswith(".placement"):
        _forget_plan(section)


def _forget_plan(serving: dict[str, Any]) -> None:
    """Remove what a plan gave: the planned batch and its network, and rate and batch sizes unless they were given."""
    placed = serving.pop("placed", None)
    if not isinstance(placed, dict):
        return
    del serving["network"]
    planned = {"rate_hz": placed.get("rate_hz"), "batch_sizes": [placed.get("batch_size")]}
    for name, value in planned.items():
        if serving.get(name) == value:
            serving.pop(name, None)


def _find_entry_section(raw: Mapping[str, Any], place: str, name: str) -> dict[str, Any]:
    """Return a section of a fleet entry, or an empty one if the entry has none."""
    fleet = raw.get("fleet")
    entry = fleet[int(place)] if isinstance(fleet, list) and int(place) < len(fleet) else None
    section = entry.get(name) if isinstance(entry, dict) else None
    return section if isinstance(section, dict) else {}


def _forget_layers(network: dict[str, Any]) -> None:
    """Remove what was filled in for a network; for a file this includes the input, which only the file can say."""
    filled = ("layers", "channels", "input") if str(network.get("model")).endswith(MODEL_FILES) else ("layers",)
    for name in filled:
        network.pop(name, None)


def parse_override(override: str) -> tuple[str, Any]:
    """Parse ``a.b=value``, with the value as in YAML; raises ``BadInput`` if it is malformed."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise BadInput("--set", repr(override), "key=value, for example --set policy=maxn or --set fleet.0.count=4")
    return key.strip(), parse_yaml(text, f"--set {key}")


def set_field(raw: dict[str, Any], key: str, value: Any, option: str = "--set ") -> None:
    """Set one value of a nested mapping in place.

    Args:
        raw: The mapping of the YAML file.
        key: Its key, ``a.b``; numbers in it index lists.

    Raises:
        BadInput: If the key leads nowhere.
    """
    node: Any = raw
    *parents, last = key.split(".")
    for depth, name in enumerate(parents):
        node = _descend(node, name, key=parents[0], where=f"{option}{'.'.join(parents[: depth + 1])}")
    _assign(node, last, value, f"{option}{key}")


def _descend(node: Any, name: str, *, key: str, where: str) -> Any:
    if isinstance(node, list):
        place = _parse_index(node, name, where)
        if isinstance(node[place], str) and key in NAME_ONLY_LISTS:
            node[place] = {NAME_ONLY_LISTS[key]: node[place]}
        return node[place]
    if not isinstance(node, dict):
        raise BadInput(where, type(node).__name__, "a mapping or a list to go into")
    if isinstance(node.get(name), str) and name in NAME_ONLY_FIELDS:
        node[name] = {NAME_ONLY_FIELDS[name]: node[name]}
    if node.get(name) is None:
        node[name] = {}
    return node[name]


def _assign(node: Any, name: str, value: Any, where: str) -> None:
    if isinstance(node, list):
        node[_parse_index(node, name, where)] = value
    elif isinstance(node, dict):
        node[name] = value
    else:
        raise BadInput(where, type(node).__name__, "a mapping or a list to go into")


def _parse_index(node: list[Any], name: str, where: str) -> int:
    if not name.isdigit() or int(name) >= len(node):
        raise BadInput(where, repr(name), f"a place from 0 to {len(node) - 1}")
    return int(name)


def resolve_experiment(raw: Mapping[str, Any], path: Path) -> Experiment:
    """Validate the mapping and make its paths, which are relative to the folder of ``path``, absolute.

    Raises:
        BadInput: For the first invalid field.
    """
    filled, folder = dict(raw), path.resolve().parent
    for key, name in NAME_ONLY_KEYS.items():
        if isinstance(filled.get(key), str):
            filled[key] = {name: filled[key]}
    for key, name in NAME_ONLY_LISTS.items():
        entries = filled.get(key)
        if isinstance(entries, list):
            filled[key] = [{name: entry} if isinstance(entry, str) else entry for entry in entries]
    if isinstance(filled.get("workload"), Mapping):
        filled["workload"] = _name_metric(_fill_network(filled["workload"], folder), folder)
    if isinstance(filled.get("fleet"), list):
        entries = enumerate(filled["fleet"])
        filled["fleet"] = [_fill_serving(entry, folder, f"{path}: fleet[{i}]") for i, entry in entries]
    return _make_paths_absolute(validate_fields(Experiment, filled, str(path), name_only=NAME_ONLY_FIELDS), folder)


def _fill_serving(entry: Any, folder: Path, where: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("serving"), Mapping):
        return entry
    serving = entry["serving"]
    if isinstance(serving.get("placement"), str) and serving.get("placed") is None:
        plan = folder / Path(serving["placement"]).expanduser()
        serving = {**read_planned_service(plan, f"{where}.serving.placement"), **serving}
    return {**entry, "serving": _fill_network(serving, folder)}


def _name_metric(section: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a workload whose metric is not called accuracy if its task file has a metric of its own."""
    task = section.get("task")
    if "metric" in section or not isinstance(task, str) or not task.endswith(TASK_FILE_SUFFIX):
        return section
    with suppress(OSError, UnicodeError):  # a file that is missing is refused with its own message
        if OWN_METRIC.search((folder / Path(task).expanduser()).read_text(encoding="utf-8")):
            return {**section, "metric": "metric"}
    return section


def _fill_network(section: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a section, workload or serving, with its network spelled out and its cost named after it.

    A task file, or a task of fedge's that stands for no other workload, is priced by its own network without a cost or
    network; its samples are in memory.
    """
    network, task = section.get("network"), section.get("task")
    if isinstance(network, str):
        network = {"model": network}
    if network is None and "cost" not in section and isinstance(task, str) and _is_priced_by_own_layers(task):
        network = {"model": task, "loading": "cached", "mixed": section.get("mixed_precision", False)}
        return {**section, "cost": Path(task).name, "network": network}
    if not isinstance(network, Mapping) or not isinstance(network.get("model"), str):
        return section
    if (folder / Path(network["model"]).expanduser() / VARIANT_FILE).is_file():
        network = {**network, "model": f"{network['model']}/{VARIANT_FILE}"}
    return {"cost": label_network(network["model"]), **section, "network": network}


def _is_priced_by_own_layers(task: str) -> bool:
    return task.endswith(TASK_FILE_SUFFIX) or (task in TASKS and TASKS[task].own_cost)


def _make_paths_absolute(experiment: Experiment, folder: Path) -> Experiment:
    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).resolve())

    fleet = tuple(_make_entry_paths_absolute(entry, absolute) for entry in experiment.fleet)
    data = experiment.data
    if data.dir is not None:
        data = data.model_copy(update={"dir": absolute(data.dir)})
    plugins = tuple(absolute(plugin) for plugin in experiment.plugins)
    work = experiment.workload
    if work.task.endswith(TASK_FILE_SUFFIX):
        work = work.model_copy(update={"task": absolute(work.task)})
    work = work.model_copy(update={"network": _make_model_absolute(work.network, absolute)})
    superlink = experiment.superlink
    if superlink.root_certificates is not None:
        superlink = superlink.model_copy(update={"root_certificates": absolute(superlink.root_certificates)})
    knowledge = experiment.knowledge
    if knowledge not in (None, "auto", "none"):
        knowledge = absolute(knowledge)
    signal = experiment.signal
    if signal is not None:
        signal = signal.model_copy(update={"trace": absolute(signal.trace)})
    changed = {
        "fleet": fleet,
        "signal": signal,
        "knowledge": knowledge,
        "data": data,
        "plugins": plugins,
        "workload": work,
        "superlink": superlink,
    }
    return experiment.model_copy(update=changed)


def _make_model_absolute(network: NetworkSpec | None, absolute: Callable[[str], str]) -> NetworkSpec | None:
    if network is None or not network.model.endswith((*MODEL_FILES, TASK_FILE_SUFFIX)):
        return network
    return network.model_copy(update={"model": absolute(network.model)})


def _make_entry_paths_absolute(entry: FleetEntry, absolute: Callable[[str], str]) -> FleetEntry:
    """Make the paths of an entry's tables, trace and board file absolute; a board file names its boards by default."""
    changes: dict[str, Any] = {}
    table = entry.truth.removeprefix("table:")
    if table not in {"", entry.truth}:
        changes["truth"] = f"table:{absolute(table)}"
    if entry.references:
        changes["references"] = tuple(absolute(path) for path in entry.references)
    availability = entry.availability
    if availability is not None and availability.trace is not None:
        changes["availability"] = availability.model_copy(update={"trace": absolute(availability.trace)})
    if entry.serving is not None:
        network = _make_model_absolute(entry.serving.network, absolute)
        place = entry.serving.placement
        serving = {"network": network, "placement": place if place is None else absolute(place)}
        changes["serving"] = entry.serving.model_copy(update=serving)
    if entry.loader is not None and entry.loader.model is not None:
        changes["loader"] = entry.loader.model_copy(update={"model": absolute(entry.loader.model)})
    if entry.device.endswith((".yaml", ".yml")):
        changes |= {"device": absolute(entry.device), "name": entry.name or Path(entry.device).stem}
    return entry.model_copy(update=changes)


# The layers of the experiment's own network ---------------------------------------------------------------------------


def add_network_layers(experiment: Experiment, where: str) -> Experiment:
    """Return the experiment with its networks' layers counted, so that no board needs a network to predict its cost.

    It is unchanged without a network or if they are present. An error names the file ``where``.

    Raises:
        BadInput: If the network cannot be loaded or has operators without a counting rule.
    """
    fleet = tuple(_count_service(entry, f"{where}: fleet[{i}]") for i, entry in enumerate(experiment.fleet))
    experiment, work = experiment.model_copy(update={"fleet": fleet}), experiment.workload
    if work.network is None:
        return experiment
    _check_cost_name(work.cost, work.network.model, where)
    if work.network.layers is None and work.network.model == work.task and work.task.endswith(TASK_FILE_SUFFIX):
        return _add_task_layers(experiment, where)
    counted = _count_layers(work.network, f"{where}: workload.network")
    if work.network.layers is None:
        counted = counted.model_copy(update={"channels": _find_trained_channels(experiment)})
    return experiment.model_copy(update={"workload": work.model_copy(update={"network": counted})})


def _find_trained_channels(experiment: Experiment) -> str | None:
    """Return as JSON the channels of a variant of the task's own network, which is trained pruned; None for others."""
    task, network = experiment.workload.task, experiment.workload.network
    assert network is not None
    path = Path(network.model)
    if path.suffix != ".json" or read_json(path, "layers or a variant").get("format") != VARIANT_FORMAT:
        return None
    variant = read_variant(path)
    of_file = task.endswith(TASK_FILE_SUFFIX) and variant.model.startswith(f"{Path(task).stem}:")
    if not of_file and variant.model != task:
        return None
    channels = variant_to_dict(variant)["channels"]
    if of_file and not _is_cut_from_task(experiment, channels, variant.cost.parameters):
        return None
    return json.dumps(channels, separators=(",", ":"))


def _is_cut_from_task(experiment: Experiment, channels: dict[str, Any], parameters: int) -> bool:
    """Return whether a plan leaves so many parameters of the network of the experiment's own task file.

    The variant names a function of the file, or of another file of this name, which may build any network. A task that
    cannot be loaded here is taken for its network: its boards, or the checks of a run, refuse a plan that does not fit.
    """
    from fedge.worker.tasks import cut_task

    try:
        trainer = cast("ImageTask", load_experiment_task(experiment)).trainer
    except Exception:  # noqa: BLE001 -- the user's own task
        return True
    try:
        module = cut_task(trainer.task, channels).build(trainer.shape)
    except Refusal:
        return False
    return sum(each.numel() for each in module.parameters()) == parameters


def _count_service(entry: FleetEntry, where: str) -> FleetEntry:
    spec = entry.serving
    if spec is None or spec.network is None:
        return entry
    network = _count_layers(spec.network, f"{where}.serving.network")
    return entry.model_copy(update={"serving": spec.model_copy(update={"network": network})})


def _count_layers(spec: NetworkSpec, field: str) -> NetworkSpec:
    """Return a network with its layers counted, unless they are; ``field`` is named in errors."""
    if spec.layers is not None:
        return spec
    try:
        network = load_network_cost(spec.model, spec.input)
    except BadInput as error:
        option = {"NETWORK": ".model", "--input-shape": ".input"}.get(error.where, f".model ({error.where})")
        raise BadInput(f"{field}{option}", error.got, _in_yaml_terms(error.right, field)) from error
    if network.unknown:
        names = ", ".join(sorted(set(network.unknown))[:5])
        raise BadInput(
            f"{field}.model", f"{spec.model} with operators that no rule counts ({names})", "another network"
        )
    if not network.flop:
        raise BadInput(f"{field}.model", f"{spec.model}, which computes nothing", "a network with layers")
    return _store_layers(spec, network)


def _store_layers(spec: NetworkSpec, network: NetworkCost) -> NetworkSpec:
    return spec.model_copy(update={"layers": format_layers(network), "input": network.input_shape})


def _add_task_layers(experiment: Experiment, where: str) -> Experiment:
    """Return the experiment with the layers of its own task file's network, for samples in the shape of its data.

    A task that cannot be loaded leaves the default cost: the checks of a run refuse it and say why, but the data of a
    fleet of real boards, which measure their cost, may be elsewhere.

    Raises:
        BadInput: The network does not run, or has operators without a counting rule.
    """
    work = experiment.workload
    try:
        task = load_experiment_task(experiment)
    except Exception:  # noqa: BLE001 -- the user's own task
        default = {"network": None, "cost": WorkloadSpec().cost}
        return experiment.model_copy(update={"workload": work.model_copy(update=default)})
    try:
        network = cast("ImageTask", task).count_layers(work.cost)
    except BadInput as error:
        right = "a network that takes a batch of the task's samples"
        raise BadInput(f"{where}: workload.task", f"{work.cost} with {error.got}", right) from error
    if network.unknown or not network.flop:
        names = ", ".join(sorted(set(network.unknown))[:5]) or "none that compute"
        right = f"other operators, or a workload.cost to price it as: {', '.join(load_workload_sizes())}"
        raise BadInput(f"{where}: workload.task", f"{work.cost} with operators that no rule counts ({names})", right)
    counted = None if work.network is None else _store_layers(work.network, network)
    return experiment.model_copy(update={"workload": work.model_copy(update={"network": counted})})


def _check_cost_name(cost: str, model: str, where: str) -> None:
    """Raise ``BadInput`` if a network without measurements is named like a measured workload."""
    if cost not in load_workload_sizes():
        return
    if model == cost:
        right = f"workload.cost: {cost}, without a network: it was measured"
        raise BadInput(f"{where}: workload.network.model", repr(model), right)
    right = "no cost beside a network, or one that is no measured workload's name"
    raise BadInput(f"{where}: workload.cost", repr(cost), right)


def _in_yaml_terms(right: str, field: str) -> str:
    """Rephrase a command's advice in terms of the YAML's fields, for the network of ``field``."""
    return right.replace("--input-shape 3x224x224", "[3, 224, 224]").replace(
        "--input-shape", f"{field.rpartition(': ')[2]}.input"
    )
