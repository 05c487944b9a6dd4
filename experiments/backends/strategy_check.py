"""Checks an experiment's strategy in a process that may import Flower: builds it and lets it aggregate once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from flwr.supercore.differential_privacy import KEY_NORM_BIT

from fedge.decisions.planning import JOINT_POLICY
from fedge.errors import BadInput, describe_error
from fedge.experiment import Experiment, StrategySpec, list_boards
from fedge.flower.client_mods import build_mod
from server.aggregation.aggregator import Aggregator, Contribution, build_strategy
from server.aggregation.async_strategies import AsyncStrategy

FLEET_LIMITS = ("fleet_power_w", "round_energy_j", "budget_j")
"""Limits on all boards of a round together, which asynchronous runs cannot have."""
UNSUPPORTED_STRATEGIES = {
    "FedXgbBagging": "a strategy that averages arrays: no task here grows trees",
    "FedXgbCyclic": "a strategy that averages arrays: no task here grows trees",
}
"""Flower's strategies that need another kind of client, each with a supported alternative."""
CLIPPING_MODS = {
    "DifferentialPrivacyClientSideFixedClipping": "fixedclipping_mod",
    "DifferentialPrivacyClientSideAdaptiveClipping": "adaptiveclipping_mod",
}
"""Strategies whose clients clip, each with the mod that does it."""
SAMPLED_CLIENTS = "num_sampled_clients"
"""Option of the strategies with differential privacy: the clients over whose average their noise is spread."""
MAX_TRIAL_BOARDS = 200
"""Largest fleet for which the trial aggregation runs. A default that bounds the check's time: some strategies compare
all pairs of results.
"""


def check_strategy(experiment: Experiment) -> None:
    """Build the strategy and, for Flower's own strategies, aggregate made-up results.

    Raises:
        BadInput: If a class or option is unknown, or the strategy cannot aggregate the results of this fleet.
    """
    spec = experiment.strategy
    for where, each in _iterate_wrapped(spec, "strategy"):
        if each.name in UNSUPPORTED_STRATEGIES:
            raise BadInput(f"{where}.name", repr(each.name), UNSUPPORTED_STRATEGIES[each.name])
        _check_noise(each, f"{where}.options", experiment.selection.count or len(list_boards(experiment)))
    _check_mods(experiment)
    if isinstance(build_strategy(spec), AsyncStrategy):
        _check_asynchronous(experiment)
        return
    if spec.wraps is not None:
        _check_wrapped(spec.wraps, "strategy.wraps")
    if not any(":" in each.name for _, each in _iterate_wrapped(spec, "strategy")):
        _try_aggregation(experiment)


def _check_noise(spec: StrategySpec, where: str, clients: int) -> None:
    """Reject noise that is spread over more clients than a round has, which would be less than was asked for."""
    sampled = spec.options.get(SAMPLED_CLIENTS)
    if isinstance(sampled, int) and sampled > clients:
        raise BadInput(f"{where}.{SAMPLED_CLIENTS}", str(sampled), f"at most {clients}, the clients of a round")


def _check_mods(experiment: Experiment) -> None:
    """Build the mods, and check that the strategy and what becomes of late replies go with them."""
    strategies = {each.name for _, each in _iterate_wrapped(experiment.strategy, "strategy")}
    names = [spec.name for spec in experiment.mods]
    for i, spec in enumerate(experiment.mods):
        build_mod(spec, f"mods[{i}]")
    for strategy, mod in CLIPPING_MODS.items():
        if mod in names and strategy not in strategies:
            raise BadInput("mods", f"{mod} without the strategy that sets its norm", f"strategy.name: {strategy}")
        if strategy not in strategies:
            continue
        if names.count(mod) != 1:
            raise BadInput("mods", f"{names or 'none'} with {strategy}", f"{mod} once: the boards have to clip")
        if experiment.late.action in {"discount", "partial"}:
            right = f"accept or drop: with {strategy} no result may be weighted after it was clipped"
            raise BadInput("late.action", repr(experiment.late.action), right)


def _iterate_wrapped(spec: StrategySpec, where: str) -> Iterator[tuple[str, StrategySpec]]:
    """Yield a strategy and the strategies it wraps, each with the path of its field."""
    yield where, spec
    if spec.wraps is not None:
        yield from _iterate_wrapped(spec.wraps, f"{where}.wraps")


def _try_aggregation(experiment: Experiment) -> None:
    """Aggregate made-up results of as many boards as a round has, because some invalid options fail only then."""
    count = experiment.selection.count or len(list_boards(experiment))
    if count > MAX_TRIAL_BOARDS:
        return
    model = {"w": np.zeros((2, 2), np.float32)}
    results = [
        Contribution(
            f"{i:03d}",
            arrays={"w": np.full((2, 2), 0.01 * i, np.float32)},
            samples=10,
            loss=0.5,
            accuracy=0.5,
            metrics={KEY_NORM_BIT: 1.0} if experiment.mods else {},
        )
        for i in range(1, count + 1)
    ]
    aggregator = Aggregator(build_strategy(experiment.strategy), experiment.seed)
    try:
        with _silence_flower():
            aggregator.configure(1, model, count)
            aggregator.aggregate(1, model, results)
    except Exception as error:
        spec, reason = experiment.strategy, describe_error(error)
        raise BadInput("strategy.options", repr(spec.options), f"what {spec.name} takes ({reason})") from error


@contextmanager
def _silence_flower() -> Iterator[None]:
    """Silence Flower's log, which reports every aggregation, during the trial."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _check_wrapped(spec: StrategySpec, where: str) -> None:
    if isinstance(build_strategy(spec, where), AsyncStrategy):
        raise BadInput(f"{where}.name", repr(spec.name), "a strategy of synchronous rounds: no wrapper knows staleness")
    if spec.wraps is not None:
        _check_wrapped(spec.wraps, f"{where}.wraps")


def _check_asynchronous(experiment: Experiment) -> None:
    """Reject fields that need synchronous rounds: late clients, and limits on the fleet's round."""
    if experiment.backend == "fleet":
        right = "a strategy of rounds: asynchronous runs go by the clock of emulated boards (backend sim or local)"
        raise BadInput("strategy.name", f"{experiment.strategy.name} on real boards", right)
    name, late, selection = experiment.strategy.name, experiment.late, experiment.selection
    if experiment.evaluation.by != "server":
        right = f"server: with {name} no round ends at which all clients could evaluate"
        raise BadInput("evaluation.by", repr(experiment.evaluation.by), right)
    if late.action != "accept":
        raise BadInput("late.action", repr(late.action), f"accept: with {name} nobody is late, results are stale")
    if selection.over_commit != 1.0:
        raise BadInput("selection.over_commit", f"{selection.over_commit:g}", f"1: with {name} nobody is cancelled")
    if selection.count is not None:
        right = f"strategy.options.concurrency, which says how many boards train at a time with {name}"
        raise BadInput("selection.count", str(selection.count), right)
    if experiment.policy.name == JOINT_POLICY:
        raise BadInput("policy.name", repr(JOINT_POLICY), f"a policy without a plan of rounds: {name} has none")
    if selection.name == "pyramidfl-like":
        right = f"another selector, such as oort: its extra steps fill the round, and {name} has none"
        raise BadInput("selection.name", "'pyramidfl-like'", right)
    if experiment.compression.kind == "topk":
        right = f"none, fp16 or int8: what topk left out is kept from round to round, and {name} has none"
        raise BadInput("compression.kind", "'topk'", right)
    for limit in FLEET_LIMITS:
        if limit in experiment.policy.limits:
            right = f"no such limit: with {name} every board plans its own tasks"
            raise BadInput(f"policy.{limit}", f"{experiment.policy.limits[limit]:g}", right)
