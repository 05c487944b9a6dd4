"""Figures and settings in words: units, percentages, intervals, knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.characterisation.judging.effects import Effect
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.setting import Value

QUANTITIES = {
    "e2e_s": "the epoch's time",
    "stall_s": "the stall",
    "compute_s": "the compute time",
    "copy_s": "the copying",
    "overhead_s": "the overhead",
    "energy_j": "the energy",
    "power_w": "the power",
    "first_e2e_s": "the first epoch's time",
    "first_stall_s": "the first epoch's stall",
    "step_compute_s": "a minibatch's compute time",
    "step_stall_s": "a minibatch's stall",
    "sample_s": "the time per sample",
    "sample_j": "the energy per sample",
}
WHOLE = ("e2e_s", "sample_s", "energy_j", "sample_j")
"""Nothing changes where these do not."""
_ORDINALS = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
MANY_TIMES = 2.0
"""From this factor on it is said as "2.3 times", not in percent."""
VAGUE = 3.0
"""A change that may be so many times as large at one end of its interval as at the other is told as the interval."""
VAGUE_SHARE = 0.2
"""So is a part of an epoch whose interval is wider than this; both chosen by us."""


def percent(part: float) -> str:
    """Of a part of 1: "67 %"; below 1 % one decimal."""
    value = 100.0 * abs(part)
    return f"{value:.1f} %" if 0 < value < 0.95 else f"{value:.0f} %"


def figure_in_words(value: float, quantity: str) -> str:
    """With its unit: "12.1 s", "4.1 ms", "830 J", "14.2 W"."""
    if quantity in {"energy_j", "sample_j"}:
        return f"{_three(value)} J"
    if quantity == "power_w":
        return f"{_three(value)} W"
    return seconds(value)


def seconds(value: float) -> str:
    """Like "12.1 s", "4.1 ms", "310 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{_three(value / scale)} {unit}"
    return f"{value * 1e6:.0f} us" if value else "0 s"


def _three(value: float) -> str:
    """Three digits that count, at least: 1.60, 12.1, 830, 20161."""
    places = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{places}f}" if abs(value) >= 1 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio of a quantity, or a part of 1; a range where several boards or workloads are spoken of."""

    quantity: str
    low: float
    high: float


def change(ratio: float, quantity: str) -> Change:
    """A single one."""
    return Change(quantity, ratio, ratio)


def certain_change(ratio: Estimate, quantity: str) -> Change:
    """One figure, or, where the interval says hardly more than the direction, the interval."""
    nearest, farthest = sorted((abs(ratio.low - 1.0), abs(ratio.high - 1.0)))
    if not ratio.bounded or farthest <= VAGUE * nearest:
        return change(ratio.value, quantity)
    return Change(quantity, max(ratio.low, 0.0), ratio.high)


def share(part: Estimate, what: str) -> Change:
    """A part of a whole: one figure, or, where that is not known within ``VAGUE_SHARE``, the interval."""
    value, low, high = (min(max(one, 0.0), 1.0) for one in (part.value, part.low, part.high))
    return Change(what, low, high) if part.bounded and high - low > VAGUE_SHARE else change(value, what)


def changes(found: Sequence[Change]) -> str:
    """What certain changes are: "cuts the stall by 67 % but takes 2.1 times the power"."""
    cuts = [f"{QUANTITIES[one.quantity]} by {_part(one)}" for one in found if one.low <= 1.0]
    raises = [f"{QUANTITIES[one.quantity]} by {_part(one)}" for one in found if one.low > 1.0 and one.high < MANY_TIMES]
    many = [_times(one) for one in found if one.low > 1.0 and one.high >= MANY_TIMES]
    more = [*([f"raises {listed(raises)}"] if raises else []), *many]
    less = [f"cuts {listed(cuts)}"] if cuts else []
    return " but ".join([*less, *([" and ".join(more)] if more else [])])


def shares(found: Sequence[Change]) -> str:
    """Parts of a whole: "62 % waiting for data, 37 % computing"."""
    return ", ".join(f"{_of_to(percent(one.low), percent(one.high))} {one.quantity}" for one in found)


def _times(one: Change) -> str:
    low, high = (f"{_three_digits(value)}" for value in (one.low, one.high))
    factor = f"{_of_to(low, high)} times"
    if one.quantity in {"energy_j", "power_w", "sample_j"}:
        return f"takes {factor} {QUANTITIES[one.quantity]}"
    return f"makes {QUANTITIES[one.quantity]} {factor} as long"


def _three_digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def _part(one: Change) -> str:
    """By how much; the lesser change first."""
    nearest, farthest = sorted((one.low, one.high), key=lambda ratio: abs(ratio - 1.0))
    return _of_to(_cut(nearest), _cut(farthest))


def _of_to(low: str, high: str) -> str:
    """Like "92 to 99 %"."""
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _cut(ratio: float) -> str:
    """Never all of it where something is left."""
    return "over 99 %" if 0.0 <= ratio < 0.005 else percent(ratio - 1.0)


def interval(ratio: Estimate) -> str:
    """The 95 % interval of a ratio, as changes: "-69 to -65 %"; as factors where it is large."""
    if ratio.high >= MANY_TIMES or not ratio.bounded:
        high = f"{ratio.high:.3g}" if ratio.bounded else "anything"
        return f"{ratio.low:.3g} to {high} times"
    return f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"


def evidence(effect: Effect) -> str:
    """One sentence for one effect: both figures, the interval, the setting."""
    name = QUANTITIES[effect.quantity]
    before, after = (figure_in_words(v, effect.quantity) for v in (effect.before_value, effect.after_value))
    one, other = (value_in_words(effect.knob, value) for value in (effect.before, effect.after))
    return (
        f"{name[0].upper()}{name[1:]}: {before} with {one}, {after} with {other}, so {interval(effect.ratio)} (95 %), "
        f"{effect.label}; {effect.held}."
    )


def value_in_words(knob: str, value: Value) -> str:
    """What a knob is at: "2 workers", "batch 16", "the CPU at 1200 MHz"."""
    if knob in {"workers", "cores"}:
        return f"1 {knob[:-1]}" if value == 1 else f"{value or 'no'} {knob}"
    if knob in {"pinned", "dvfs", "kind"}:
        return _NAMED[knob, value]
    return _AT.get(knob, "{}").format(f"{value:g}" if isinstance(value, float) else value)


_NAMED: Mapping[tuple[str, Value], str] = {
    ("pinned", True): "pinned memory",
    ("pinned", False): "pageable memory",
    ("dvfs", True): "DVFS on",
    ("dvfs", False): "DVFS off",
    ("kind", "train"): "training",
    ("kind", "infer"): "inference",
}
_SWITCHED: Mapping[tuple[str, Value], str] = {
    ("pinned", True): "Pinned instead of pageable memory",
    ("pinned", False): "Pageable instead of pinned memory",
    ("dvfs", True): "DVFS on instead of off",
    ("dvfs", False): "DVFS off instead of on",
}
_AT = {
    "cpu_mhz": "the CPU at {} MHz",
    "gpu_mhz": "the GPU at {} MHz",
    "mem_mhz": "the memory at {} MHz",
    "batch_size": "batch {}",
    "prefetch": "prefetch {}",
    "cache": "a {} cache",
}
_SUBJECTS = {
    "batch_size": "A batch of {} instead of {}",
    "prefetch": "Fetching {} batches ahead for each worker instead of {}",
    "cores": "Having {} cores instead of {}",
    "cpu_mhz": "The CPU at {} instead of {} MHz",
    "gpu_mhz": "The GPU at {} instead of {} MHz",
    "mem_mhz": "The memory at {} instead of {} MHz",
    "storage": "Reading from {} instead of {}",
    "runtime": "Running in {} instead of {}",
}


def turning(knob: str, before: Value, after: Value) -> str:
    """The subject of a sentence: "Adding a second loader worker", "A batch of 16 instead of 1"."""
    if knob == "workers":
        step, place = int(after) - int(before), int(after)
        adding = step == 1 and place < len(_ORDINALS)
        return (
            f"Adding a {_ORDINALS[place]} loader worker"
            if adding
            else f"Having {after} loader workers instead of {before or 'none'}"
        )
    if knob in {"pinned", "dvfs"}:
        return _SWITCHED[knob, after]
    if knob in _SUBJECTS:
        return _SUBJECTS[knob].format(*(f"{v:g}" if isinstance(v, float) else v for v in (after, before)))
    if knob == "cache":
        return f"A {after} instead of a {before} page cache"
    return f"{value_in_words(knob, after).capitalize()} instead of {value_in_words(knob, before)}"


def listed(parts: list[str]) -> str:
    """Like "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(count: int, what: str) -> str:
    """Like "1 point", "1,200 minibatches"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith(('tch', 'sh')) else 's'}"
