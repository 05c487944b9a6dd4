"""The what-if cards: which knob to turn next, from what to what, and how much it should bring."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from html import escape

from experiments.report.cells import badge
from experiments.report.characterisation.links import link
from experiments.report.characterisation.names import KINDS, TITLES, value_word
from experiments.report.chart import Section
from experiments.report.quantities import duration, energy, percent
from fedge.characterisation.advice.whatif import Advice
from fedge.characterisation.judging.setting import Value

NOTHING = "No knob is known that would make an epoch shorter or cheaper."
WHAT = {"e2e_s": "time per epoch", "energy_j": "energy per epoch"}
CLOCKS = ("cpu_mhz", "gpu_mhz", "mem_mhz")
MOST = 9
"""Cards; the others are in findings.json. Chosen by us, as is the next."""
ALSO = 4
"""So many other places are named in a card."""


def section(found: Sequence[Advice], names: Mapping[str, str], points: int) -> Section:
    """The largest saving first; one card for the same turn, wherever it helps."""
    title = "What to turn next"
    if not found:
        why = "No point is finished yet." if not points else NOTHING
        return Section(title, why, ())
    turns: dict[Hashable, dict[str, list[Advice]]] = {}
    for one in sorted(found, key=lambda one: -one.saving):
        turn = (one.knob, one.now, one.then, one.label, one.expected.n > 0)  # what was seen and what is expected apart
        turns.setdefault(turn, {}).setdefault(one.point, []).append(one)
    lead = (
        "One knob turned, all else as it is. What the sweep has seen comes with its own interval, what the pipeline "
        "model expects with the model's error."
    )
    rest = len(turns) - MOST
    left = f'<p class="caption">{rest:,} more {"is" if rest == 1 else "are"} in findings.json.</p>' if rest > 0 else ""
    shown = "".join(_card(list(places.values()), names) for places in list(turns.values())[:MOST])
    return Section(title, lead, (), f'<div class="whatif">{shown}</div>{left}')


def _card(places: Sequence[Sequence[Advice]], names: Mapping[str, str]) -> str:
    """A turn and, for every place that one would turn it from, what it saves of time and energy."""
    best, *_ = first = places[0]
    unit = " MHz" if best.knob in CLOCKS else ""
    turned = f"{TITLES.get(best.knob, best.knob)}: {_value(best, best.now)} → {_value(best, best.then)}{unit}"
    start = f" From {link(best.point, names[best.point])}." if best.point in names else ""
    figures = "".join(f"<p>{_figures(one)}</p>" for one in first)
    also = [f"{escape(_place(some[0]))}: {_savings(some)}" for some in places[1 : 1 + ALSO]]
    more = f"; and {len(places) - 1 - ALSO:,} more" if len(places) > 1 + ALSO else ""
    elsewhere = f'<p class="why">The same: {"; ".join(also)}{more}.</p>' if also else ""
    return (
        f'<article><h3>{escape(turned)}</h3><p class="saving">{_savings(first)}</p>'
        f'{figures}<p class="why">{escape(_sentence(best.why))}</p>{elsewhere}'
        f'<p class="caption">{badge(best.label)} {escape(_place(best))}.{start}</p></article>'
    )


def _place(one: Advice) -> str:
    return ", ".join((one.workload, one.board, KINDS.get(one.kind, one.kind)))


def _savings(found: Sequence[Advice]) -> str:
    """Of time and of energy."""
    return ", ".join(f"{_saved(one)} {WHAT.get(one.quantity, '')}" for one in found)


def _figures(one: Advice) -> str:
    return f"{_written(one, one.present)} → <b>{_written(one, one.expected.value)}</b>{_range(one)}"


def _value(one: Advice, value: Value) -> str:
    return value_word(one.knob, value)


def _saved(one: Advice) -> str:
    return f"{percent(abs(one.saving))} {'less' if one.saving >= 0 else 'more'}"


def _sentence(words: str) -> str:
    """With a capital, and a full stop."""
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")


def _written(one: Advice, value: float) -> str:
    return duration(value) if one.quantity == "e2e_s" else energy(value)


def _range(one: Advice) -> str:
    if not one.expected.bounded:
        return ""
    low, high = _written(one, one.expected.low), _written(one, one.expected.high)
    return f" ({low} to {high})" if low != high else ""
