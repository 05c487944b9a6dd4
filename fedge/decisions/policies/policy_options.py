"""The numeric options of the built-in policies, and the check of what a user gave."""

from __future__ import annotations

from fedge.errors import BadInput
from fedge.experiment import PolicySpec

POLICY_OPTIONS: dict[str, tuple[str, ...]] = {
    "maxn": (),
    "preset": (),
    "fastest-within-power": ("power_w", "confidence"),
    "least-energy-within-deadline": ("deadline_s", "confidence"),
    "balanced": ("time_weight", "max_slowdown", "confidence", "deadline_s"),
    "least-energy": ("deadline_s", "max_slowdown", "confidence"),
    "fastest": ("round_energy_j", "fleet_power_w", "confidence"),
    "energy-budget": ("budget_j", "time_weight", "max_slowdown", "confidence"),
    "joint": ("time_weight", "min_progress", "deadline_s", "round_energy_j", "fleet_power_w", "confidence"),
}
"""Numeric options of each built-in policy."""
REQUIRED_POLICY_OPTIONS: dict[str, dict[str, str]] = {
    "fastest-within-power": {"power_w": "20"},
    "least-energy-within-deadline": {"deadline_s": "90"},
    "fastest": {"fleet_power_w": "100", "round_energy_j": "5000"},
    "energy-budget": {"budget_j": "100000"},
}
"""Options of which a policy needs at least one, each with an example value."""


def check_policy_options(policy: PolicySpec, prefix: str, assignment: str) -> None:
    """Check that a built-in policy takes the options that are set, and has those that it needs.

    Args:
        policy: The policy; one of the user's own takes any options.
        prefix: What stands before an option's name where a message says what is wrong, such as ``policy.``.
        assignment: What stands before it where a message gives an example, such as ``--set policy.``.

    Raises:
        BadInput: For the first option that is wrong or missing.
    """
    base, given = policy.name.partition(":")[0], policy.limits
    for option, value in policy.options.items():
        if base in POLICY_OPTIONS:
            raise BadInput(
                f"{prefix}options.{option}", f"{value:g}", "no options, which are numbers of your own policy"
            )
        if option in PolicySpec.model_fields:
            raise BadInput(f"{prefix}options.{option}", f"{value:g}", f"{prefix}{option}, which any policy may have")
    for option in given if base in POLICY_OPTIONS else ():
        if option not in POLICY_OPTIONS[base]:
            right = f"{base} takes {', '.join(POLICY_OPTIONS[base]) or 'no options'}"
            raise BadInput(f"{prefix}{option}", f"{given[option]:g}", right)
    needed = REQUIRED_POLICY_OPTIONS.get(base, {})
    if needed and not set(needed) & set(given):
        first, *others = needed
        right = f"{base} needs it{''.join(f' or {other}' for other in others)}, "
        raise BadInput(f"{prefix}{first}", "nothing", f"{right}for example {assignment}{first}={needed[first]}")
