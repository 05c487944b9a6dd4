"""Policies, pure functions that choose a board's power mode for a round: the name table and its look-up."""

from __future__ import annotations

from fedge.interfaces import Policy
from fedge.pareto import nearest_row
from fedge.registry import load
from fedge.types import DeviceSpec, Modes, PowerMode

POLICIES = {
    "maxn": "fedge.policies.fixed:maxn",
    "preset": "fedge.policies.fixed:preset",
    "fastest-within-power": "fedge.policies.power:fastest_within_power",
    "least-energy-within-deadline": "fedge.policies.energy:least_energy_within_deadline",
    "balanced": "fedge.policies.balanced:balanced",
    "least-energy": "fedge.policies.fleet:least_energy",
    "fastest": "fedge.policies.fleet:fastest",
    "energy-budget": "fedge.policies.fleet:energy_budget",
}
"""A policy's name in the configuration -> its function; ``preset`` is written ``preset:NAME``."""


def policy_for(name: str, where: str = "policy") -> Policy:
    """The policy behind ``name``: one of ``POLICIES``, ``preset:NAME`` or the user's own ``module:function``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    policy: Policy = load(where, "preset" if name.startswith("preset:") else name, POLICIES)
    return policy


def waiting_mode(name: str, spec: DeviceSpec, candidates: Modes) -> PowerMode:
    """The mode in which a board waits for the round's end, one of ``candidates``.

    ``maxn`` and ``preset:NAME`` pin it to the mode they work in; under any other policy it is the lowest.
    """
    pinned = spec.maxn if name == "maxn" else None
    if name.startswith("preset:"):
        pinned = spec.presets.get(name.removeprefix("preset:"))
    return lowest_mode(candidates) if pinned is None else candidates[nearest_row(candidates, pinned)]


def lowest_mode(candidates: Modes) -> PowerMode:
    """The candidate that draws least idling: idle power grows with every knob, so that of the least sum of shares."""
    return candidates[int((candidates.knobs / candidates.knobs.max(axis=0)).sum(axis=1).argmin())]
