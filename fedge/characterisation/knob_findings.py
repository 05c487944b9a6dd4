"""Findings about single knobs: what changing each one does, where it does nothing, and where that is uncertain.

For every board, workload and kind, a knob's effects are grouped by the values of the other knobs. The title describes
one group (that with the most values, then with the largest change), the evidence the others. Workers are described step
by step; for other ordered knobs the first value is compared with the last, and a minimum of energy between them is
mentioned. A title states only certain effects (``KnobEffect.certain``), each with its value, and "nothing" only if the
interval supports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from fedge.characterisation.finding_draft import Clause, FindingDraft, lower_first
from fedge.characterisation.finding_text import (
    QUANTITY_NAMES,
    TOTAL_QUANTITIES,
    describe_changes,
    describe_effect,
    describe_knob_change,
    describe_knob_value,
    format_interval,
    make_certain_change,
)
from fedge.characterisation.knob_effects import MIN_CHANGE, KnobEffect, weakest_label
from fedge.characterisation.point_knobs import MODE_KNOBS, ORDERED_KNOBS, KnobValue

FINDING_KIND_BY_KNOB = {"cores": "cores", "cpu_mhz": "cpu", "gpu_mhz": "gpu", "mem_mhz": "memory", "kind": "inference"}
TITLE_QUANTITIES: dict[str, tuple[str, ...]] = {
    "workers": ("stall_s", "e2e_s", "energy_j"),
    "prefetch": ("stall_s", "e2e_s", "energy_j"),
    "batch_size": ("step_compute_s", "sample_s", "sample_j"),
    "storage": ("first_stall_s", "first_e2e_s", "e2e_s"),
    "cache": ("first_stall_s", "first_e2e_s", "e2e_s"),
    "pinned": ("copy_s", "e2e_s", "energy_j"),
    "kind": ("compute_s", "e2e_s", "energy_j"),
}
"""Quantities that a title may mention, by knob; for others stall, compute, time, power and energy."""
_DEFAULT_QUANTITIES = ("stall_s", "compute_s", "e2e_s", "power_w", "energy_j")
MAX_STEPS = 3
"""Maximum number of steps of workers in a title, and of other settings in the evidence."""
MAX_UNORDERED_STEPS = 2
"""Maximum number of pairs of values of an unordered knob in a title."""
UNCLEAR, NOTHING = 0.001, 0.1
"""Strength of an uncertain effect, and of certainly no effect, which still answers a question of the plan; defaults
that rank both below real effects."""
GENERAL_SUBJECTS = {
    "cpu_mhz": "A high instead of a low CPU clock (each board's own)",
    "gpu_mhz": "A high instead of a low GPU clock (each board's own)",
    "mem_mhz": "A high instead of a low memory clock (each board's own)",
}
"""Subjects for boards with different clocks."""
CLOCK_WEIGHT = 0.6
"""Weight of effects of a power mode's knobs; a default below 1, since slower work at a lower clock is expected."""

KnobStep = dict[str, KnobEffect]
"""The effects of one step of a knob, by quantity."""
KnobChain = dict[tuple[KnobValue, KnobValue], KnobStep]
"""All steps of a knob with everything else equal."""


def find_knob_findings(effects: Sequence[KnobEffect], firsts: Sequence[KnobEffect] = ()) -> list[FindingDraft]:
    """Make one finding per board, workload, kind and knob.

    Args:
        effects: The result of ``compute_pooled_effects``.
        firsts: The result of ``compute_effects_from_first``.
    """
    spans = _group_chains(firsts)
    found: list[FindingDraft] = []
    for place, chains in _group_chains(effects).items():
        *_, knob = place
        found.append(_draft_knob(knob, chains, spans.get(place, {})))
    return found


def _group_chains(effects: Sequence[KnobEffect]) -> dict[tuple[str, str, str, str], dict[str, KnobChain]]:
    """Group effects by board, workload, kind and knob, then by the values of the other knobs."""
    groups: dict[tuple[str, str, str, str], dict[str, KnobChain]] = defaultdict(dict)
    for effect in effects:
        settings = groups[effect.board, effect.workload, effect.kind, effect.knob]
        settings.setdefault(effect.held, {}).setdefault((effect.before, effect.after), {})[effect.quantity] = effect
    return groups


def _draft_knob(knob: str, settings: dict[str, KnobChain], spans: dict[str, KnobChain]) -> FindingDraft:
    chains = sorted(settings.items(), key=lambda one: (-len(one[1]), -_chain_strength(one[1])))
    same, chain = chains[0]
    steps = list(chain.values())
    steps = steps if knob == "workers" else sorted(steps, key=lambda step: -_step_strength(step))
    any_effect = next(iter(steps[0].values()))
    span = spans.get(same, {})
    whole = span.get((next(iter(chain))[0], list(chain)[-1][1]), {}) if knob in ORDERED_KNOBS else {}
    shown = [e for step in steps for e in step.values() if e.quantity in (*_title_quantities(knob), "e2e_s")]
    far = [e for step in span.values() for e in step.values() if e.quantity in _title_quantities(knob)]
    in_title = [
        e
        for step in ([whole] if _covers_whole_range(knob, whole) else steps[:MAX_STEPS])
        for e in select_title_effects(step, knob)
    ]
    told_first = sorted([*far, *shown], key=lambda e: e not in in_title)
    weight = CLOCK_WEIGHT if knob in MODE_KNOBS else 1.0
    return FindingDraft(
        clauses=tuple(_make_clauses(knob, chain, steps, whole)),
        evidence=(
            *map(describe_effect, told_first),
            *_describe_other_settings(knob, steps[0], [own for _, own in chains[1:]]),
        ),
        strength=weight * max(map(_step_strength, [*steps, *([whole] if whole else [])])),
        kind=FINDING_KIND_BY_KNOB.get(knob, knob),
        points=tuple(dict.fromkeys(key for effect in shown for key in effect.points)),
        label=weakest_label([effect.label for effect in shown]),
        boards=(any_effect.board,),
        workloads=(any_effect.workload,),
        work="" if knob == "kind" else any_effect.kind,
    )


def _title_quantities(knob: str) -> tuple[str, ...]:
    return TITLE_QUANTITIES.get(knob, _DEFAULT_QUANTITIES)


def select_title_effects(step: KnobStep, knob: str) -> list[KnobEffect]:
    """Return the certain effects of a step that matter to the whole, in the order of ``TITLE_QUANTITIES``."""
    found = [step[name] for name in _title_quantities(knob) if name in step]
    certain = [one for one in found if one.certain and abs(one.share) >= MIN_CHANGE]
    firsts = {one.before_value for one in certain if one.quantity == "first_e2e_s"}
    # If only the first epoch was measured, both quantities are the same; mention one.
    return [one for one in certain if one.quantity != "e2e_s" or one.before_value not in firsts]


def _covers_whole_range(knob: str, whole: KnobStep) -> bool:
    """Return whether the title compares the knob's first value with its last; for workers it never does."""
    return knob != "workers" and bool(whole) and bool(select_title_effects(whole, knob))


def _make_clauses(knob: str, chain: KnobChain, steps: Sequence[KnobStep], whole: KnobStep) -> list[Clause]:
    """Return the clauses of a title, at least one."""
    if _covers_whole_range(knob, whole):
        (span,) = _make_step_clauses(knob, whole, first=True)
        return [
            replace(span, general=GENERAL_SUBJECTS.get(knob, "")),
            *_make_least_energy_clauses(knob, list(chain.values())),
        ]
    if knob in GENERAL_SUBJECTS and len(chain) == 1 and select_title_effects(steps[0], knob):
        return [replace(one, general=GENERAL_SUBJECTS[knob]) for one in _make_step_clauses(knob, steps[0], first=True)]
    clauses: list[Clause] = []
    for step in steps[: MAX_STEPS if knob in ORDERED_KNOBS else MAX_UNORDERED_STEPS]:
        clauses += _make_step_clauses(knob, step, first=not clauses)
    return clauses


def _make_step_clauses(knob: str, step: KnobStep, *, first: bool) -> list[Clause]:
    """Return the clauses of one step; an uncertain effect is mentioned only in the first clause of a title."""
    effect = next(iter(step.values()))
    subject = describe_knob_change(knob, effect.before, effect.after)
    certain = select_title_effects(step, knob)
    if certain:
        own = Clause(subject, tuple(make_certain_change(one.ratio, one.quantity) for one in certain))
        later = knob == "storage" and "e2e_s" in step and step["e2e_s"].nothing and step["e2e_s"] not in certain
        return [own, *([Clause("Later epochs", statement="take the same time")] if later else [])]
    if has_no_effect(step):
        return [Clause(subject, statement="changes nothing")]
    return [Clause(f"Whether {lower_first(subject)}", *_make_unclear_clause(step))] if first else []


def _make_least_energy_clauses(knob: str, steps: Sequence[KnobStep]) -> list[Clause]:
    """Describe where the energy is least, if that is certain and between the first and the last value."""
    for name in ("energy_j", "sample_j"):
        for step, after in pairwise(steps):
            one, other = step.get(name), after.get(name)
            if one and other and one.certain and other.certain and one.relative_change < 0 < other.relative_change:
                return [
                    Clause(
                        f"{QUANTITY_NAMES[name].capitalize()} is least",
                        statement=f"with {_describe_value(knob, one.after)}",
                    )
                ]
    return []


def _describe_value(knob: str, value: KnobValue) -> str:
    return describe_knob_value(knob, value)


def _make_unclear_clause(step: KnobStep) -> tuple[tuple[()], str, str]:
    """Return statement and remark for a step without a certain result: the first quantity whose change is unclear."""
    whole = [step[name] for name in (*TOTAL_QUANTITIES, "first_e2e_s") if name in step]
    one = next((effect for effect in whole if not effect.nothing), None)
    what = QUANTITY_NAMES[one.quantity] if one else "anything"
    return (), f"changes {what} cannot be told{{aside}}", f" ({format_interval(one.ratio)})" if one else ""


def has_no_effect(step: KnobStep) -> bool:
    """Return whether time, and energy if metered, certainly stay within ``MIN_CHANGE``."""
    whole = [step[name] for name in TOTAL_QUANTITIES if name in step]
    firsts = [step[name] for name in ("first_e2e_s",) if name in step]
    return bool(whole) and all(one.nothing for one in (*whole, *firsts))


def _step_strength(step: KnobStep) -> float:
    """Return a step's effect on time or energy, symmetrical in increases and decreases; power alone does not count."""
    effect = next(iter(step.values()))
    certain = select_title_effects(step, effect.knob)
    if not certain:
        return NOTHING if has_no_effect(step) else UNCLEAR
    whole = [1.0 - min(one.ratio.value, 1.0 / one.ratio.value) for one in certain if _is_total(one)]
    parts = [min(abs(one.share), 1.0) for one in certain if one.quantity.endswith("_s")]
    return max((UNCLEAR, *(whole or parts)))


def _is_total(effect: KnobEffect) -> bool:
    return effect.quantity in (*TOTAL_QUANTITIES, "first_e2e_s") and effect.ratio.value > 0


def _chain_strength(chain: KnobChain) -> float:
    return max(map(_step_strength, chain.values()))


def _describe_other_settings(knob: str, step: KnobStep, others: Sequence[KnobChain]) -> tuple[str, ...]:
    """Describe the same step in other settings, one sentence each, the largest effect first."""
    effect = next(iter(step.values()))
    same = [chain[effect.before, effect.after] for chain in others if (effect.before, effect.after) in chain]
    largest = sorted(same, key=lambda one: -_step_strength(one))[:MAX_STEPS]
    return tuple(f"With {next(iter(other.values())).held}: {_describe_step(other, knob)}." for other in largest)


def _describe_step(step: KnobStep, knob: str) -> str:
    certain = select_title_effects(step, knob)
    if certain:
        return f"it {describe_changes([make_certain_change(one.ratio, one.quantity) for one in certain])}"
    if has_no_effect(step):
        return "it changes nothing"
    _, said, aside = _make_unclear_clause(step)
    return f"whether it {said}".replace("{aside}", aside)
