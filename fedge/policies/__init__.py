"""Policies, pure functions that choose a board's power mode for a round: the name table and its look-up."""

from __future__ import annotations

from fedge.interfaces import Policy
from fedge.registry import load
from fedge.types import Modes, PowerMode

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


def waiting_mode(name: str, found: PowerMode, candidates: Modes) -> PowerMode:
    """The mode in which a board waits for the round's end: where ``maxn`` and ``preset`` pin it, the lowest otherwise.

    ``found`` is the mode the board rests in; idle power grows with every knob, so the lowest candidate of all knobs, by
    the sum of their shares of the largest, draws least.
    """
    if name == "maxn" or name.startswith("preset:"):
        return found
    return candidates[int((candidates.knobs / candidates.knobs.max(axis=0)).sum(axis=1).argmin())]
