"""Findings about single knobs: what turning each does, where it does nothing, and where that cannot be told.

For every board, workload and kind the settings in which a knob was turned are told apart by what was held; the title is
of one of them (the most values, then the largest change), the evidence names the others. Workers are told of step by
step; of other knobs with an order the first value against the last, and where between them the energy is least. A title
states nothing but certain effects (``Effect.certain``), each by its own figure, and "nothing" only where the interval
says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from fedge.characterisation.findings.draft import Clause, Draft, uncapital
from fedge.characterisation.findings.words import (
    QUANTITIES,
    WHOLE,
    certain_change,
    changes,
    evidence,
    interval,
    turning,
    value_in_words,
)
from fedge.characterisation.judging.effects import LEAST_CHANGE, Effect, worst
from fedge.characterisation.judging.setting import MODE_KNOBS, ORDERED, Value

KIND_OF = {"cores": "cores", "cpu_mhz": "cpu", "gpu_mhz": "gpu", "mem_mhz": "memory", "kind": "inference"}
SPOKEN: dict[str, tuple[str, ...]] = {
    "workers": ("stall_s", "e2e_s", "energy_j"),
    "prefetch": ("stall_s", "e2e_s", "energy_j"),
    "batch_size": ("step_compute_s", "sample_s", "sample_j"),
    "storage": ("first_stall_s", "first_e2e_s", "e2e_s"),
    "cache": ("first_stall_s", "first_e2e_s", "e2e_s"),
    "pinned": ("copy_s", "e2e_s", "energy_j"),
    "kind": ("compute_s", "e2e_s", "energy_j"),
}
"""What a title may speak of, by knob; else of stall, compute, time and energy."""
_ELSE = ("stall_s", "compute_s", "e2e_s", "power_w", "energy_j")
SHOWN = 3
"""So many steps of workers in a title, and so many other settings in the evidence."""
WORDS = 2
"""So many pairs of values without an order in a title."""
UNCLEAR, NOTHING = 0.001, 0.1
"""Strength of what is not clear, and of what certainly does nothing, which answers a plan's question; chosen by us."""
GENERAL = {
    "cpu_mhz": "A high instead of a low CPU clock (each board's own)",
    "gpu_mhz": "A high instead of a low GPU clock (each board's own)",
    "mem_mhz": "A high instead of a low memory clock (each board's own)",
}
"""Said of boards whose clocks are not the same."""
CLOCKS_COUNT = 0.6
"""What an effect of a power mode's knobs counts: that a lower clock is slower is no news; chosen by us."""

Step = dict[str, Effect]
"""The effects of one step of a knob, by quantity."""
Chain = dict[tuple[Value, Value], Step]
"""All steps of a knob, all else the same."""


def about_knobs(effects: Sequence[Effect], firsts: Sequence[Effect] = ()) -> list[Draft]:
    """One finding for every board, workload, kind and knob; ``firsts`` are those of ``effects_from_first``."""
    spans = _chains(firsts)
    found: list[Draft] = []
    for place, chains in _chains(effects).items():
        *_, knob = place
        found.append(_about(knob, chains, spans.get(place, {})))
    return found


def _chains(effects: Sequence[Effect]) -> dict[tuple[str, str, str, str], dict[str, Chain]]:
    """By board, workload, kind and knob, then by what was held."""
    groups: dict[tuple[str, str, str, str], dict[str, Chain]] = defaultdict(dict)
    for effect in effects:
        settings = groups[effect.board, effect.workload, effect.kind, effect.knob]
        settings.setdefault(effect.held, {}).setdefault((effect.before, effect.after), {})[effect.quantity] = effect
    return groups


def _about(knob: str, settings: dict[str, Chain], spans: dict[str, Chain]) -> Draft:
    chains = sorted(settings.items(), key=lambda one: (-len(one[1]), -_largest(one[1])))
    same, chain = chains[0]
    steps = list(chain.values())
    steps = steps if knob == "workers" else sorted(steps, key=lambda step: -_strength(step))
    any_effect = next(iter(steps[0].values()))
    span = spans.get(same, {})
    whole = span.get((next(iter(chain))[0], list(chain)[-1][1]), {}) if knob in ORDERED else {}
    shown = [e for step in steps for e in step.values() if e.quantity in (*_spoken(knob), "e2e_s")]
    far = [e for step in span.values() for e in step.values() if e.quantity in _spoken(knob)]
    in_title = [e for step in ([whole] if _is_of_whole(knob, whole) else steps[:SHOWN]) for e in told(step, knob)]
    told_first = sorted([*far, *shown], key=lambda e: e not in in_title)
    weight = CLOCKS_COUNT if knob in MODE_KNOBS else 1.0
    return Draft(
        clauses=tuple(_clauses(knob, chain, steps, whole)),
        evidence=(*map(evidence, told_first), *_elsewhere(knob, steps[0], [own for _, own in chains[1:]])),
        strength=weight * max(map(_strength, [*steps, *([whole] if whole else [])])),
        kind=KIND_OF.get(knob, knob),
        points=tuple(dict.fromkeys(key for effect in shown for key in effect.points)),
        label=worst([effect.label for effect in shown]),
        boards=(any_effect.board,),
        workloads=(any_effect.workload,),
        work="" if knob == "kind" else any_effect.kind,
    )


def _spoken(knob: str) -> tuple[str, ...]:
    return SPOKEN.get(knob, _ELSE)


def told(step: Step, knob: str) -> list[Effect]:
    """The certain effects of a step that matter to the whole, by ``SPOKEN``."""
    found = [step[name] for name in _spoken(knob) if name in step]
    certain = [one for one in found if one.certain and abs(one.share) >= LEAST_CHANGE]
    firsts = {one.before_value for one in certain if one.quantity == "first_e2e_s"}
    # where the first epoch is all that was looked at, its figures are said once
    return [one for one in certain if one.quantity != "e2e_s" or one.before_value not in firsts]


def _is_of_whole(knob: str, whole: Step) -> bool:
    """Whether the title is of the knob's first value against its last; of workers it is of every step."""
    return knob != "workers" and bool(whole) and bool(told(whole, knob))


def _clauses(knob: str, chain: Chain, steps: Sequence[Step], whole: Step) -> list[Clause]:
    """What a title says; one clause at least."""
    if _is_of_whole(knob, whole):
        (span,) = _clause(knob, whole, first=True)
        return [replace(span, general=GENERAL.get(knob, "")), *_least_energy(knob, list(chain.values()))]
    if knob in GENERAL and len(chain) == 1 and told(steps[0], knob):
        return [replace(one, general=GENERAL[knob]) for one in _clause(knob, steps[0], first=True)]
    clauses: list[Clause] = []
    for step in steps[: SHOWN if knob in ORDERED else WORDS]:
        clauses += _clause(knob, step, first=not clauses)
    return clauses


def _clause(knob: str, step: Step, *, first: bool) -> list[Clause]:
    """Of one step; what cannot be told is told where nothing came before it."""
    effect = next(iter(step.values()))
    subject = turning(knob, effect.before, effect.after)
    certain = told(step, knob)
    if certain:
        own = Clause(subject, tuple(certain_change(one.ratio, one.quantity) for one in certain))
        later = knob == "storage" and "e2e_s" in step and step["e2e_s"].nothing and step["e2e_s"] not in certain
        return [own, *([Clause("Later epochs", said="take the same time")] if later else [])]
    if does_nothing(step):
        return [Clause(subject, said="changes nothing")]
    return [Clause(f"Whether {uncapital(subject)}", *_unclear(step))] if first else []


def _least_energy(knob: str, steps: Sequence[Step]) -> list[Clause]:
    """Where the energy is least, if that is certain and between the first and the last value."""
    for name in ("energy_j", "sample_j"):
        for step, after in pairwise(steps):
            one, other = step.get(name), after.get(name)
            if one and other and one.certain and other.certain and one.change < 0 < other.change:
                return [Clause(f"{QUANTITIES[name].capitalize()} is least", said=f"with {_value(knob, one.after)}")]
    return []


def _value(knob: str, value: Value) -> str:
    return value_in_words(knob, value)


def _unclear(step: Step) -> tuple[tuple[()], str, str]:
    """Of a step that neither does something for certain nor nothing: the first quantity of which that is so."""
    whole = [step[name] for name in (*WHOLE, "first_e2e_s") if name in step]
    one = next((effect for effect in whole if not effect.nothing), None)
    what = QUANTITIES[one.quantity] if one else "anything"
    return (), f"changes {what} cannot be told{{aside}}", f" ({interval(one.ratio)})" if one else ""


def does_nothing(step: Step) -> bool:
    """Whether time, and energy where it was metered, certainly stay within ``LEAST_CHANGE``."""
    whole = [step[name] for name in WHOLE if name in step]
    firsts = [step[name] for name in ("first_e2e_s",) if name in step]
    return bool(whole) and all(one.nothing for one in (*whole, *firsts))


def _strength(step: Step) -> float:
    """Of what it does to an epoch's time or energy, up or down the same; watts alone are not the whole."""
    effect = next(iter(step.values()))
    certain = told(step, effect.knob)
    if not certain:
        return NOTHING if does_nothing(step) else UNCLEAR
    whole = [1.0 - min(one.ratio.value, 1.0 / one.ratio.value) for one in certain if _is_whole(one)]
    parts = [min(abs(one.share), 1.0) for one in certain if one.quantity.endswith("_s")]
    return max((UNCLEAR, *(whole or parts)))


def _is_whole(effect: Effect) -> bool:
    return effect.quantity in (*WHOLE, "first_e2e_s") and effect.ratio.value > 0


def _largest(chain: Chain) -> float:
    return max(map(_strength, chain.values()))


def _elsewhere(knob: str, step: Step, others: Sequence[Chain]) -> tuple[str, ...]:
    """The same step in other settings: a sentence for each, the largest first."""
    effect = next(iter(step.values()))
    same = [chain[effect.before, effect.after] for chain in others if (effect.before, effect.after) in chain]
    largest = sorted(same, key=lambda one: -_strength(one))[:SHOWN]
    return tuple(f"With {next(iter(other.values())).held}: {_briefly(other, knob)}." for other in largest)


def _briefly(step: Step, knob: str) -> str:
    certain = told(step, knob)
    if certain:
        return f"it {changes([certain_change(one.ratio, one.quantity) for one in certain])}"
    if does_nothing(step):
        return "it changes nothing"
    _, said, aside = _unclear(step)
    return f"whether it {said}".replace("{aside}", aside)
