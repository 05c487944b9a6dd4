"""Policies, pure functions that choose a board's power mode for a round: the table of policies and its look-up."""

from __future__ import annotations

from fedge.pareto import find_nearest_row
from fedge.protocols import Policy
from fedge.registry import load_named
from fedge.types import DeviceSpec, Modes, PowerMode

POLICIES = {
    "maxn": "fedge.decisions.policies.fixed_policies:choose_maxn",
    "preset": "fedge.decisions.policies.fixed_policies:choose_preset",
    "fastest-within-power": "fedge.decisions.policies.limit_policies:choose_fastest_within_power",
    "least-energy-within-deadline": "fedge.decisions.policies.limit_policies:choose_least_energy_within_deadline",
    "balanced": "fedge.decisions.policies.balanced_policy:choose_balanced",
    "least-energy": "fedge.decisions.policies.fleet_policies:choose_least_energy",
    "fastest": "fedge.decisions.policies.fleet_policies:choose_fastest",
    "energy-budget": "fedge.decisions.policies.fleet_policies:choose_within_budget",
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
    return policy


def choose_waiting_mode(name: str, spec: DeviceSpec, candidates: Modes) -> PowerMode:
    """Return the mode in which a board waits for the round's end, one of ``candidates``.

    ``maxn`` and ``preset:NAME`` pin it to the mode of the work; under any other policy it is the lowest mode.
    """
    pinned = spec.maxn if name == "maxn" else None
    if name.startswith("preset:"):
        pinned = spec.presets.get(name.removeprefix("preset:"))
    return find_lowest_mode(candidates) if pinned is None else candidates[find_nearest_row(candidates, pinned)]


def find_lowest_mode(candidates: Modes) -> PowerMode:
    """Return the candidate of least idle power, which grows with every knob: the least sum of relative knobs."""
    return candidates[int((candidates.knobs / candidates.knobs.max(axis=0)).sum(axis=1).argmin())]
