"""Wording of quantities and settings: units, percentages, intervals, knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.knob_effects import KnobEffect
from fedge.characterisation.point_knobs import KnobValue

QUANTITY_NAMES = {
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
TOTAL_QUANTITIES = ("e2e_s", "sample_s", "energy_j", "sample_j")
"""If none of these changes, a knob is said to change nothing."""
_ORDINALS = ("zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
MULTIPLE_FROM = 2.0
"""Factor from which a change is written as "2.3 times", not in percent."""
MAX_INTERVAL_RATIO = 3.0
"""A change is written as an interval if its ends differ by more than this factor; a default up to which one value
does not mislead."""
MAX_SHARE_WIDTH = 0.2
"""A share of an epoch is written as an interval if that is wider than this; a default on the same grounds."""


def format_percent(part: float) -> str:
    """Format a share in percent, "67 %"; below 1 % with one decimal."""
    value = 100.0 * abs(part)
    return f"{value:.1f} %" if 0 < value < 0.95 else f"{value:.0f} %"


def format_quantity(value: float, quantity: str) -> str:
    """Format a value with its unit: "12.1 s", "4.1 ms", "830 J", "14.2 W".

    Args:
        value: The value in SI units.
        quantity: A key of ``QUANTITY_NAMES``, which determines the unit.
    """
    if quantity in {"energy_j", "sample_j"}:
        return f"{_format_three_digits(value)} J"
    if quantity == "power_w":
        return f"{_format_three_digits(value)} W"
    return format_seconds(value)


def format_seconds(value: float) -> str:
    """Format a duration: "12.1 s", "4.1 ms", "310 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{_format_three_digits(value / scale)} {unit}"
    return f"{value * 1e6:.0f} us" if value else "0 s"


def _format_three_digits(value: float) -> str:
    """Format a number with at least three significant digits: 1.60, 12.1, 830, 20161."""
    places = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{places}f}" if abs(value) >= 1 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class QuantityChange:
    """A ratio of a quantity, or a share of 1, as a range if several boards or workloads are concerned.

    Attributes:
        quantity: A key of ``QUANTITY_NAMES``, or the name of a part of an epoch.
        low: Lower end of the range.
        high: Upper end; equal to ``low`` for a single value.
    """

    quantity: str
    low: float
    high: float


def make_change(ratio: float, quantity: str) -> QuantityChange:
    """Return a change by a single ratio."""
    return QuantityChange(quantity, ratio, ratio)


def make_certain_change(ratio: Estimate, quantity: str) -> QuantityChange:
    """Return a change by one ratio, or by its interval if that determines little more than the direction.

    Args:
        ratio: After divided by before.
        quantity: A key of ``QUANTITY_NAMES``.
    """
    nearest, farthest = sorted((abs(ratio.low - 1.0), abs(ratio.high - 1.0)))
    if not ratio.is_bounded or farthest <= MAX_INTERVAL_RATIO * nearest:
        return make_change(ratio.value, quantity)
    return QuantityChange(quantity, max(ratio.low, 0.0), ratio.high)


def make_share(part: Estimate, what: str) -> QuantityChange:
    """Return a share of a whole as one value, or as its interval if that is wider than ``MAX_SHARE_WIDTH``.

    Args:
        part: The share, clipped to 0 to 1.
        what: Name of the part.
    """
    value, low, high = (min(max(one, 0.0), 1.0) for one in (part.value, part.low, part.high))
    return (
        QuantityChange(what, low, high)
        if part.is_bounded and high - low > MAX_SHARE_WIDTH
        else make_change(value, what)
    )


def describe_changes(found: Sequence[QuantityChange]) -> str:
    """Describe certain changes: "cuts the stall by 67 % but takes 2.1 times the power"."""
    cuts = [f"{QUANTITY_NAMES[one.quantity]} by {_format_part(one)}" for one in found if one.low <= 1.0]
    raises = [
        f"{QUANTITY_NAMES[one.quantity]} by {_format_part(one)}"
        for one in found
        if one.low > 1.0 and one.high < MULTIPLE_FROM
    ]
    many = [_describe_multiple(one) for one in found if one.low > 1.0 and one.high >= MULTIPLE_FROM]
    more = [*([f"raises {join_words(raises)}"] if raises else []), *many]
    less = [f"cuts {join_words(cuts)}"] if cuts else []
    return " but ".join([*less, *([" and ".join(more)] if more else [])])


def describe_shares(found: Sequence[QuantityChange]) -> str:
    """Describe shares of a whole: "62 % waiting for data, 37 % computing"."""
    return ", ".join(
        f"{_format_range(format_percent(one.low), format_percent(one.high))} {one.quantity}" for one in found
    )


def _describe_multiple(one: QuantityChange) -> str:
    low, high = (f"{_format_factor(value)}" for value in (one.low, one.high))
    factor = f"{_format_range(low, high)} times"
    if one.quantity in {"energy_j", "power_w", "sample_j"}:
        return f"takes {factor} {QUANTITY_NAMES[one.quantity]}"
    return f"makes {QUANTITY_NAMES[one.quantity]} {factor} as long"


def _format_factor(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def _format_part(one: QuantityChange) -> str:
    """Format a relative change, the smaller end of a range first."""
    nearest, farthest = sorted((one.low, one.high), key=lambda ratio: abs(ratio - 1.0))
    return _format_range(_format_cut(nearest), _format_cut(farthest))


def _format_range(low: str, high: str) -> str:
    """Format a range, such as "92 to 99 %"."""
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _format_cut(ratio: float) -> str:
    """Format a reduction; one that leaves something is never written as 100 %."""
    return "over 99 %" if 0.0 <= ratio < 0.005 else format_percent(ratio - 1.0)


def format_interval(ratio: Estimate) -> str:
    """Format the 95 % interval of a ratio as changes, "-69 to -65 %", or as factors if it is large."""
    if ratio.high >= MULTIPLE_FROM or not ratio.is_bounded:
        high = f"{ratio.high:.3g}" if ratio.is_bounded else "anything"
        return f"{ratio.low:.3g} to {high} times"
    return f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"


def describe_effect(effect: KnobEffect) -> str:
    """Describe one effect in a sentence: both values, the interval, the setting."""
    name = QUANTITY_NAMES[effect.quantity]
    before, after = (format_quantity(v, effect.quantity) for v in (effect.before_value, effect.after_value))
    one, other = (describe_knob_value(effect.knob, value) for value in (effect.before, effect.after))
    return (
        f"{name[0].upper()}{name[1:]}: {before} with {one}, {after} with {other}, so "
        f"{format_interval(effect.ratio)} (95 %), "
        f"{effect.label}; {effect.held}."
    )


def describe_knob_value(knob: str, value: KnobValue) -> str:
    """Describe a knob's value: "2 workers", "batch 16", "the CPU at 1200 MHz"."""
    if knob in {"workers", "cores"}:
        return f"1 {knob[:-1]}" if value == 1 else f"{value or 'no'} {knob}"
    if knob in {"pinned", "dvfs", "kind"}:
        return _SWITCH_NAMES[knob, value]
    return _VALUE_FORMATS.get(knob, "{}").format(f"{value:g}" if isinstance(value, float) else value)


_SWITCH_NAMES: Mapping[tuple[str, KnobValue], str] = {
    ("pinned", True): "pinned memory",
    ("pinned", False): "pageable memory",
    ("dvfs", True): "DVFS on",
    ("dvfs", False): "DVFS off",
    ("kind", "train"): "training",
    ("kind", "infer"): "inference",
}
_SWITCH_SUBJECTS: Mapping[tuple[str, KnobValue], str] = {
    ("pinned", True): "Pinned instead of pageable memory",
    ("pinned", False): "Pageable instead of pinned memory",
    ("dvfs", True): "DVFS on instead of off",
    ("dvfs", False): "DVFS off instead of on",
}
_VALUE_FORMATS = {
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


def describe_knob_change(knob: str, before: KnobValue, after: KnobValue) -> str:
    """Describe a knob's change as the subject of a sentence: "Adding a second loader worker"."""
    if knob == "workers":
        step, place = int(after) - int(before), int(after)
        adding = step == 1 and place < len(_ORDINALS)
        return (
            f"Adding a {_ORDINALS[place]} loader worker"
            if adding
            else f"Having {after} loader workers instead of {before or 'none'}"
        )
    if knob in {"pinned", "dvfs"}:
        return _SWITCH_SUBJECTS[knob, after]
    if knob in _SUBJECTS:
        return _SUBJECTS[knob].format(*(f"{v:g}" if isinstance(v, float) else v for v in (after, before)))
    if knob == "cache":
        return f"A {after} instead of a {before} page cache"
    return f"{describe_knob_value(knob, after).capitalize()} instead of {describe_knob_value(knob, before)}"


def join_words(parts: list[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def format_count(count: int, what: str) -> str:
    """Format a count with its noun: "1 point", "1,200 minibatches"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith(('tch', 'sh')) else 's'}"
