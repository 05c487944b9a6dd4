"""Checks an experiment before anything is written: every name known, every limit possible on these boards."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from fedge import registry, workloads
from fedge.costs.workloads import load_workloads
from fedge.devices import catalogue
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Board, Experiment, boards
from fedge.fleetsim.boards import kind_of
from fedge.policies import POLICIES, policy_for
from fedge.predictors import PREDICTORS

OPTIONS: dict[str, tuple[str, ...]] = {
    "maxn": (),
    "preset": (),
    "fastest-within-power": ("power_w", "confidence"),
    "least-energy-within-deadline": ("deadline_s", "confidence"),
    "balanced": ("time_weight", "max_slowdown", "confidence"),
}
"""Which numbers each of fedge's policies takes."""
NEEDED = {"fastest-within-power": "power_w", "least-energy-within-deadline": "deadline_s"}


def check(experiment: Experiment) -> None:
    """Raise ``BadInput`` for the first thing that could not work, naming its field."""
    add_plugins(experiment)
    _check_fleet(experiment)
    workloads.check_task(experiment.workload.task)
    registry.load("predictor", experiment.predictor, PREDICTORS)
    _check_policy(experiment)


def add_plugins(experiment: Experiment) -> None:
    """Make the user's own modules importable."""
    for plugin in experiment.plugins:
        if not Path(plugin).is_file() or not plugin.endswith(".py"):
            raise BadInput("plugins", plugin, "the path of an existing Python file")
        if importlib.util.find_spec(Path(plugin).stem) is None:
            sys.path.append(str(Path(plugin).parent))


def _check_fleet(experiment: Experiment) -> None:
    for i, entry in enumerate(experiment.fleet):
        catalogue.find(entry.device, where=f"fleet[{i}].device")
    fleet = boards(experiment)
    names = [board.name for board in fleet]
    for board in fleet:
        if names.count(board.name) > 1:
            right = "boards of a name of their own: give the fleet entries a `name`"
            raise BadInput("fleet", f"two boards called {board.name!r}", right)
    known = tuple(load_workloads())
    if experiment.workload.cost not in known:
        raise UnknownName("workload.cost", experiment.workload.cost, known)
    for board in fleet:
        kind_of(board, experiment.workload)


def _check_policy(experiment: Experiment) -> None:
    policy = experiment.policy
    policy_for(policy.name, "policy.name")
    base = policy.name.partition(":")[0]
    if base in OPTIONS:
        for option in policy.limits:
            if option not in OPTIONS[base]:
                right = f"{base} takes {', '.join(OPTIONS[base]) or 'no options'}"
                raise BadInput(f"policy.{option}", str(policy.limits[option]), right)
    needed = NEEDED.get(base)
    if needed and needed not in policy.limits:
        raise BadInput(f"policy.{needed}", "nothing", f"{base} needs it, for example --set policy.{needed}=20")
    if base == "preset" and base in POLICIES:
        _check_presets(experiment, policy.name.partition(":")[2])
    if policy.power_w is not None:
        _check_power(experiment, policy.power_w)


def _check_presets(experiment: Experiment, preset: str) -> None:
    for board in boards(experiment):
        presets = kind_of(board, experiment.workload).spec.presets
        if preset not in presets:
            raise UnknownName(f"policy ({board.entry.device})", preset, tuple(presets))


def _check_power(experiment: Experiment, power_w: float) -> None:
    """A limit that no board can keep is wrong; one that some cannot keep is met as nearly as they can."""
    needed = dict(_least_power_w(experiment))
    if power_w < min(needed.values()):
        figures = ", ".join(f"{device} {least_w:.1f} W" for device, least_w in needed.items())
        raise BadInput("policy.power_w", f"{power_w:g} W", f"at least one board able to keep it; they need {figures}")


def _least_power_w(experiment: Experiment) -> Iterator[tuple[str, float]]:
    for board in boards(experiment):
        yield board.entry.device, float(kind_of(board, experiment.workload).average.power_w.min())


def out_of_reach(experiment: Experiment) -> tuple[Board, ...]:
    """The boards that cannot keep the policy's power limit even in their lowest mode, for a warning."""
    limit_w = experiment.policy.power_w
    if limit_w is None:
        return ()
    least = dict(_least_power_w(experiment))
    return tuple(board for board in boards(experiment) if least[board.entry.device] > limit_w)


def labels(experiment: Experiment) -> dict[str, dict[str, dict[str, str]]]:
    """Per device: how its truth and its predictor's prior came about."""
    kinds = {board.entry.device: kind_of(board, experiment.workload) for board in boards(experiment)}
    return {
        device: {
            "truth": {"label": kind.truth_label, "source": kind.truth_source},
            "prior": {"label": "estimated", "source": "; ".join(prior.source for prior in kind.priors)},
        }
        for device, kind in kinds.items()
    }
