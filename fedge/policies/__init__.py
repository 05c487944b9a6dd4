"""Policies, pure functions that choose a board's power mode for a round: the name table and its look-up."""

from __future__ import annotations

from fedge.interfaces import Policy
from fedge.registry import load

POLICIES = {
    "maxn": "fedge.policies.fixed:maxn",
    "preset": "fedge.policies.fixed:preset",
    "fastest-within-power": "fedge.policies.power:fastest_within_power",
    "least-energy-within-deadline": "fedge.policies.energy:least_energy_within_deadline",
    "balanced": "fedge.policies.balanced:balanced",
}
"""A policy's name in the configuration -> its function; ``preset`` is written ``preset:NAME``."""


def policy_for(name: str, where: str = "policy") -> Policy:
    """The policy behind ``name``: one of ``POLICIES``, ``preset:NAME`` or the user's own ``module:function``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    policy: Policy = load(where, "preset" if name.startswith("preset:") else name, POLICIES)
    return policy
