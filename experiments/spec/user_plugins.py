"""The user's plug-ins: their files and the modules beside them, their import, and their trial before a run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fedge.decisions.candidate_modes import mask_candidates
from fedge.decisions.planning.round_plan import plan_round
from fedge.decisions.policies import POLICIES, load_policy
from fedge.decisions.selection import SELECTORS, load_selector
from fedge.devices.board_kinds import build_kind, build_knowledge, load_references
from fedge.devices.catalogue import is_catalogued
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.import_path import OWN_PACKAGES, append_folder
from fedge.pareto import build_front
from fedge.predictors import load_predictor
from fedge.registry import describe_failure
from fedge.seeds import make_generator
from fedge.types import ClientStatus, DeviceSpec, Front, Modes, Predictions, SelectionContext

_modified_ns: dict[Path, int] = {}
"""When a plug-in's file had last been changed at its import, in ns: a notebook may change it between two runs."""


def list_plugin_files(plugins: Sequence[str]) -> tuple[Path, ...]:
    """Return the plug-ins and the modules beside them that they import, directly or not.

    Returns:
        Files, and folders of packages; each once.
    """
    found = dict.fromkeys(Path(plugin) for plugin in plugins)
    waiting = list(found)
    while waiting:
        source = waiting.pop()
        for neighbour in _find_neighbours(source):
            if neighbour not in found:
                found[neighbour] = None
                waiting.append(neighbour)
    return tuple(found)


def _find_neighbours(source: Path) -> Iterator[Path]:
    """Yield the modules and packages in the folder of a module or package that it imports."""
    for file in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # its import says what is wrong
        for name in _list_imported_names(tree):
            module, package = source.with_name(f"{name}.py"), source.with_name(name)
            if package.resolve() in OWN_PACKAGES:
                continue
            if package.is_dir() and any(package.glob("*.py")):
                yield package
            elif module.is_file():
                yield module


def _list_imported_names(tree: ast.Module) -> set[str]:
    """Return the top-level names that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def import_plugins(experiment: Experiment) -> None:
    """Make the user's modules importable and import them.

    Raises:
        BadInput: If a module is missing, another one has the name of it or of a module beside it, or it fails to
            import.
    """
    for i, plugin in enumerate(experiment.plugins):
        path, where = Path(plugin), f"plugins[{i}]"
        if not path.is_file() or path.suffix != ".py":
            raise BadInput(where, plugin, "the path of an existing Python file")
        append_folder(path.parent)
        files = list_plugin_files([plugin])
        for file in files:
            if not _is_found(file):
                got = plugin if file == path else f"{plugin}, which needs {file.name} beside it"
                raise BadInput(where, got, f"a file of another name: there is a module {file.stem!r} already")
        _forget_changed(files)
        try:
            importlib.import_module(path.stem)
        except Exception as error:
            raise BadInput(where, plugin, f"a Python file that can be imported ({describe_failure(error)})") from error


@contextmanager
def import_apart(plugins: Sequence[str]) -> Iterator[None]:
    """Let Python import the plug-ins anew inside the block: calls there leave the run's modules as they are."""
    stems = {file.stem for file in list_plugin_files(plugins)}
    kept = _pop_modules(stems)
    try:
        yield
    finally:
        _pop_modules(stems)
        sys.modules.update(kept)


def _pop_modules(stems: Collection[str]) -> dict[str, ModuleType]:
    """Forget the modules of these top-level names, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in stems}


def _is_found(file: Path) -> bool:
    """Return whether Python finds this module or package by its name."""
    spec = importlib.util.find_spec(file.stem)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return file.resolve() in {Path(place).resolve() for place in places if place}


def _forget_changed(files: Sequence[Path]) -> None:
    """Let Python import all files anew if one of them was changed since its import in this process."""
    times = {file: max(one.stat().st_mtime_ns for one in (file, *file.rglob("*.py"))) for file in files}
    if any(_modified_ns.get(file, time) != time for file, time in times.items()):
        _pop_modules({file.stem for file in files})
        importlib.invalidate_caches()
    _modified_ns.update(times)


TRIAL_STEPS, TRIAL_LINK_S, TRIAL_SAMPLES = 10, 1.0, 100
"""A round of the trial. Any would do: what is looked for are results of another type, and errors."""


def try_own_functions(experiment: Experiment) -> None:
    """Call the user's own policy and selector with what the first round would give them.

    Copies of their modules are called, so that a counter in a module starts the run as its file says. This is why a
    plug-in is imported twice before a run: what a call changes in a module cannot be undone, only left behind.

    Raises:
        BadInput: In one line, if one of them fails or returns something that a round cannot use.
    """
    policy, selection = experiment.policy, experiment.selection
    own_policy = policy.name not in POLICIES and not policy.name.startswith("preset:")
    if not own_policy and selection.name in SELECTORS:
        return
    with import_apart(experiment.plugins):
        _call_own_functions(experiment, own_policy)


def _call_own_functions(experiment: Experiment, own_policy: bool) -> None:
    policy, selection = experiment.policy, experiment.selection
    boards = [board for board in list_boards(experiment) if is_catalogued(board.entry.device)]
    if not boards:  # nothing is known about them before they answer
        return
    predictions, spec, front = _predict_first_round(experiment, boards[0])
    if own_policy:
        goal = plan_round(policy, {boards[0].name: front}, [boards[0].name]).goals[boards[0].name]
        load_policy(policy.name, "policy.name")(predictions, front, goal, spec)
    if selection.name not in SELECTORS:
        clients = [ClientStatus(board.name, front=front, samples=TRIAL_SAMPLES) for board in boards]
        count = len(boards) if selection.count is None else selection.count
        context = SelectionContext(1, count=count, options=selection.options, policy=policy.name, limits=policy.limits)
        load_selector(selection.name)(clients, context, make_generator(experiment.seed, 1, "select"))


def _predict_first_round(experiment: Experiment, board: FleetBoard) -> tuple[Predictions, DeviceSpec, Front]:
    """Return a board's predictions without measurements, its description and its offer."""
    kind = build_kind(board, experiment.workload)
    knowledge = build_knowledge(kind, load_references(board, experiment.workload), None)
    modes = Modes(kind.average.modes.knobs[mask_candidates(kind.average.modes)])
    predictions = load_predictor(experiment.predictor, knowledge).fit([]).predict(modes)
    front = build_front(
        predictions, TRIAL_STEPS, idle_w=float(predictions.power_w.min()) / 2, link_s=TRIAL_LINK_S, maxn=kind.spec.maxn
    )
    return predictions, kind.spec, front
