"""Policies, pure functions that choose a board's power mode for a round: the table of policies and its look-up."""

from __future__ import annotations

from functools import lru_cache

from fedge.errors import BadInput
from fedge.pareto import find_nearest_row
from fedge.protocols import Policy
from fedge.registry import call_plugin, describe_value, load_named
from fedge.types import Decision, DeviceSpec, Front, Modes, PowerMode, Predictions, RoundGoal

POLICIES = {
    "maxn": "fedge.decisions.policies.mode_policies:choose_maxn",
    "preset": "fedge.decisions.policies.mode_policies:choose_preset",
    "fastest-within-power": "fedge.decisions.policies.mode_policies:choose_fastest_within_power",
    "least-energy-within-deadline": "fedge.decisions.policies.mode_policies:choose_least_energy_within_deadline",
    "balanced": "fedge.decisions.policies.mode_policies:choose_balanced",
    "least-energy": "fedge.decisions.policies.mode_policies:choose_least_energy",
    "fastest": "fedge.decisions.policies.mode_policies:choose_fastest",
    "joint": "fedge.decisions.policies.mode_policies:choose_fastest",
    "energy-budget": "fedge.decisions.policies.mode_policies:choose_within_budget",
}
"""The function of each policy, by its name in the configuration; ``preset`` is written ``preset:NAME``."""


def load_policy(name: str, where: str = "policy") -> Policy:
    """Return the policy behind a name.

    Args:
        name: One of ``POLICIES``, ``preset:NAME`` or the user's own ``module:function``.
        where: The configuration field that errors name.

    Raises:
        UnknownName: If there is no such policy.
        BadInput: If the user's own function cannot be loaded.
    """
    policy: Policy = load_named(where, "preset" if name.startswith("preset:") else name, POLICIES)
    return policy if is_builtin_policy(name) else _check_decisions(policy, name, where)


def is_builtin_policy(name: str) -> bool:
    """Return whether a policy is one of ``POLICIES``, none of which reads the points of the offer."""
    return name in POLICIES or name.startswith("preset:")


def _check_decisions(policy: Policy, name: str, where: str) -> Policy:
    """Return the user's own policy, whose calls raise ``BadInput`` unless it decides for a mode of the board."""
    if not callable(policy):
        raise BadInput(where, repr(name), "a function or a class")

    def decide(predictions: Predictions, offer: Front, goal: RoundGoal, spec: DeviceSpec) -> Decision:
        decision = call_plugin(where, name, Decision, lambda: policy(predictions, offer, goal, spec))
        for mode in (decision.mode, *(() if decision.mix is None else (decision.mix.mode,))):
            if not isinstance(mode, PowerMode) or not _is_offered(mode, predictions, offer):
                got = f"{name!r}, which chose {describe_value(mode)}"
                raise BadInput(
                    where, got, "one of the candidates: predictions.modes[row], or the mode of a point of offer"
                )
        return decision

    return decide


def _is_offered(mode: PowerMode, predictions: Predictions, offer: Front) -> bool:
    near = predictions.modes[find_nearest_row(predictions.modes, mode)]
    return mode == near or any(mode == point.mode for point in (*offer.points, offer.maxn))


def choose_waiting_mode(name: str, spec: DeviceSpec, candidates: Modes) -> PowerMode:
    """Return the mode in which a board waits for the round's end, one of ``candidates``.

    ``maxn`` and ``preset:NAME`` pin it to the mode of the work; under any other policy it is the lowest mode.
    """
    pinned = spec.maxn if name == "maxn" else None
    if name.startswith("preset:"):
        pinned = spec.presets.get(name.removeprefix("preset:"))
    return find_lowest_mode(candidates) if pinned is None else candidates[find_nearest_row(candidates, pinned)]


@lru_cache(maxsize=64)
def find_lowest_mode(candidates: Modes) -> PowerMode:
    """Return the candidate of least idle power, which grows with every knob: the least sum of relative knobs."""
    return candidates[int((candidates.knobs / candidates.knobs.max(axis=0)).sum(axis=1).argmin())]
