"""Findings of a sweep as records, their merging over boards and workloads, and the one function that words them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedge.characterisation.point_statistics import PooledSetting
from fedge.characterisation.sweep_plan import CLOCK_KNOBS, KNOB_TITLES, KnobValue, format_knob_value
from fedge.confidence_interval import Estimate
from fedge.groups import group_by
from fedge.types import Label, weakest_label

FINDING_KINDS = (
    *("workers", "prefetch", "batch_size", "pinned", "storage", "cache", "runtime", "dvfs", "inference"),
    *("cores", "cpu", "gpu", "memory"),
    *("bound", "energy", "plane", "pipelining"),
    *("varies-within", "varies-between", "throttled", "unsettled", "disturbed"),
)
"""Topics of findings: a knob, a clock of the power mode, the sweep as a whole, or the reliability of its points."""
TEMPLATES = {
    "change": "{step}: {figures}",
    "no-effect": "{step}: no effect",
    "unclear": "{step}: the effect on the {quantity} is unclear{remark}",
    "same-later": "later epochs take the same time",
    "least": "the {quantity} is least at {value}",
    "bound": "{setting}{remark} is {bound}: {figures}",
    "cheaper-mode": "{mode} instead of the top mode: {figures}",
    "cheaper-clock": "{step}, all else at the top: {figures}",
    "time-unclear": "the epoch time changes by {interval}",
    "top-mode": "The top mode, {mode}, takes the least energy of {count} modes",
    "knee": "The best compromise of time and energy (the knee of the front) is {setting}{remark}",
    "dominated": "{count} of {total} settings take more time and more energy than another",
    "pipelining": "Loading beside the {work}{remark}: {figures}",
    "varies-within": "Largest differences over {count} repeats: {figures}{remark}",
    "varies-between": "Largest differences between {count} boards of a kind: {figures}",
    "throttled": "Slowed by the board to protect itself (throttling): {count} of {total} points",
    "unsettled": "Not settled, so that the figures depend on the time of measurement: {count} of {total} points",
    "disturbed": "Other programs kept cores busy, so that a quiet machine is needed: {count} of {total} points",
}
"""Wording of a statement by its template; ``step`` is a knob with its values, ``figures`` the statement's figures."""
QUANTITY_NAMES = {
    "e2e_s": "epoch time",
    "stall_s": "stall",
    "compute_s": "compute time",
    "copy_s": "copying",
    "overhead_s": "overhead",
    "energy_j": "energy",
    "power_w": "power",
    "first_e2e_s": "first epoch's time",
    "first_stall_s": "first epoch's stall",
    "step_compute_s": "compute time per minibatch",
    "step_stall_s": "stall per minibatch",
    "sample_s": "time per sample",
    "sample_j": "energy per sample",
}
TOTAL_QUANTITIES = ("e2e_s", "sample_s", "energy_j", "sample_j")
"""If none of these changes, a knob has no effect."""
SHARE_NAMES = {"stall_s": "waiting for data", "compute_s": "computing", "copy_s": "copying", "overhead_s": "overhead"}
MULTIPLE_FROM = 2.0
"""Factor from which a change is written as "x 2.3", not in percent."""
MAX_INTERVAL_RATIO = 3.0
"""A change is given as its interval if the ends differ by more than this factor; a default up to which one value does
not mislead."""
MAX_SHARE_WIDTH = 0.2
"""A share of an epoch is given as its interval if that is wider than this; a default on the same grounds."""
MAX_NAMES = 3
"""Maximum number of boards or workloads that a title names; a default that keeps a title on about one line."""
MAX_STRENGTH_RATIO = 3.0
"""Findings are merged if the strongest is at most this many times as strong as the weakest; a default that keeps small
effects from hiding in the range of a large one."""
MAX_EVIDENCE = 8
"""Maximum number of sentences of evidence kept from each merged finding, as many as a title may have figures."""
REPEAT_WEIGHT = 0.6
"""Weight of each further finding of a kind relative to the one before it; a default that mixes kinds at the top."""

Term = KnobValue | None


@dataclass(frozen=True, slots=True)
class FindingFigure:
    """A ratio (after divided by before) or a share of 1, as a range; equal ends are a single value."""

    quantity: str
    low: float
    high: float

    @classmethod
    def from_ratio(cls, ratio: Estimate, quantity: str) -> FindingFigure:
        """Return a certain change by its value, or by its interval if that gives little more than the direction."""
        nearest, farthest = sorted((abs(ratio.low - 1.0), abs(ratio.high - 1.0)))
        if not ratio.is_bounded or farthest <= MAX_INTERVAL_RATIO * nearest:
            return cls(quantity, ratio.value, ratio.value)
        return cls(quantity, max(ratio.low, 0.0), ratio.high)

    @classmethod
    def from_share(cls, part: Estimate, quantity: str) -> FindingFigure:
        """Return a share, clipped to 0 to 1, or its interval if that is wider than ``MAX_SHARE_WIDTH``."""
        value, low, high = (min(max(one, 0.0), 1.0) for one in (part.value, part.low, part.high))
        wide = part.is_bounded and high - low > MAX_SHARE_WIDTH
        return cls(quantity, low, high) if wide else cls(quantity, value, value)


@dataclass(frozen=True, slots=True)
class FindingStatement:
    """The content of a finding, for one of ``TEMPLATES``.

    Attributes:
        template: Key of the template.
        terms: The template's values; those of a knob are ``knob``, ``before`` and ``after``.
        figures: Changes, or shares for the templates ``bound`` and ``varies-...``.
        remark: Words in parentheses; merged findings keep it only if all have the same one.
    """

    template: str
    terms: Mapping[str, Term] = field(default_factory=dict)
    figures: tuple[FindingFigure, ...] = ()
    remark: str = ""

    def subject(self, *, general: bool = False) -> Hashable:
        """Return what statements must have in common to be merged; ``general`` ignores the values of clocks."""
        clock = general and self.terms.get("knob") in CLOCK_KNOBS and self.template == "change"
        return self.template, *((k, v) for k, v in self.terms.items() if not clock or k == "knob")


@dataclass(frozen=True, slots=True)
class SweepFinding:
    """One result of a sweep.

    Attributes:
        kind: One of ``FINDING_KINDS``.
        statements: What it states, the main statement first.
        evidence: Sentences with values, intervals, and the keys of points.
        strength: Importance, for ranking: roughly the share of an epoch's time or energy that it concerns.
        boards: The boards concerned, or kinds of them; empty for all.
        work: ``train`` or ``infer``; empty for both.
        title: The statements in one sentence; set by ``render_finding``, as are the next two.
        board: The only board concerned; empty for several.
    """

    kind: str
    statements: tuple[FindingStatement, ...]
    evidence: tuple[str, ...]
    strength: float
    points: tuple[str, ...]
    label: Label = "estimated"
    boards: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    work: str = ""
    title: str = ""
    board: str = ""
    workload: str = ""


def make_finding(
    kind: str,
    settings: Sequence[PooledSetting],
    *statements: FindingStatement,
    evidence: Iterable[str],
    strength: float,
    label: Label,
) -> SweepFinding:
    """Make a finding about settings of one board and workload."""
    point = settings[0].point
    return SweepFinding(
        kind=kind,
        statements=statements,
        evidence=tuple(evidence),
        strength=strength,
        points=tuple(key for one in settings for key in one.points),
        label=label,
        boards=(point.board,),
        workloads=(point.workload,),
        work=point.kind,
    )


def render_finding(finding: SweepFinding) -> SweepFinding:
    """Return the finding with its title: the statements in one sentence, then the places concerned."""
    text = "; ".join(map(_render_statement, finding.statements))
    boards, workloads = _list_names(finding.boards, "boards"), _list_names(finding.workloads, "workloads")
    work = {"train": "training", "infer": "inference"}.get(finding.work, "")
    places = ", ".join(filter(None, (" on ".join(filter(None, (workloads, boards))), work, finding.label)))
    return replace(
        finding,
        title=f"{text[:1].upper()}{text[1:]} ({places}).",
        board=finding.boards[0] if len(finding.boards) == 1 else "",
        workload=finding.workloads[0] if len(finding.workloads) == 1 else "",
    )


def _render_statement(one: FindingStatement) -> str:
    terms = {name: value for name, value in one.terms.items() if name != "knob"}
    if "knob" in one.terms:
        terms["step"] = describe_step(str(one.terms["knob"]), one.terms.get("before"), one.terms.get("after"))
    write = _write_share if one.template == "bound" or one.template.startswith("varies") else write_change
    remark = f" ({one.remark})" if one.remark else ""
    return TEMPLATES[one.template].format(**terms, figures=", ".join(map(write, one.figures)), remark=remark)


def _list_names(names: Sequence[str], noun: str) -> str:
    if len(names) > MAX_NAMES:
        return f"{len(names)} {noun}"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def describe_step(knob: str, before: Term, after: Term) -> str:
    """Describe a change of a knob: "loader workers 0 -> 1"; without values, those of the boards' own clocks."""
    if before is None or after is None:
        return f"{KNOB_TITLES.get(knob, knob)} low -> high"
    unit = " MHz" if knob in CLOCK_KNOBS else ""
    return f"{KNOB_TITLES.get(knob, knob)} {format_knob_value(knob, before)} -> {format_knob_value(knob, after)}{unit}"


def write_change(figure: FindingFigure) -> str:
    """Write a change: "stall -67 %", "power x 2.5 to 3"."""
    if figure.low > 1.0 and figure.high >= MULTIPLE_FROM:
        ends = [f"{end:.2g}" if end < 10 else f"{end:.3g}" for end in (figure.low, figure.high)]
        return f"{QUANTITY_NAMES[figure.quantity]} x {_write_range(ends)}"
    ratios = sorted((figure.low, figure.high), key=lambda ratio: abs(ratio - 1.0))
    ends = [_write_percent(end - 1.0, sign=True) if end >= 0.005 else "over -99" for end in ratios]
    return f"{QUANTITY_NAMES[figure.quantity]} {_write_range(ends)} %"


def _write_share(figure: FindingFigure) -> str:
    ends = [_write_percent(end) for end in (figure.low, figure.high)]
    return f"{_write_range(ends)} % {SHARE_NAMES.get(figure.quantity) or QUANTITY_NAMES[figure.quantity]}"


def _write_range(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _write_percent(part: float, *, sign: bool = False) -> str:
    value = 100.0 * part
    return f"{value:{'+' if sign else ''}.{1 if 0 < abs(value) < 0.95 else 0}f}"


def format_percent(part: float) -> str:
    """Format a share in percent, "67 %"; below 1 % with one decimal."""
    return f"{_write_percent(abs(part))} %"


def format_interval(ratio: Estimate) -> str:
    """Format the 95 % interval of a ratio as changes, "-69.0 to -65.1 %", or as factors if it is large."""
    if ratio.high >= MULTIPLE_FROM or not ratio.is_bounded:
        return f"x {ratio.low:.3g} to {f'{ratio.high:.3g}' if ratio.is_bounded else 'anything'}"
    return f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"


def format_quantity(value: float, quantity: str) -> str:
    """Format a value in SI units by a key of ``QUANTITY_NAMES``: "12.1 s", "4.10 ms", "310 us", "830 J"."""
    unit, scale = {"j": ("J", 1.0), "w": ("W", 1.0)}.get(quantity[-1], ("s", 1.0))
    if unit == "s" and abs(value) < 1.0:
        unit, scale = ("ms", 1e-3) if abs(value) >= 1e-3 else ("us", 1e-6) if value else ("s", 1.0)
    if unit == "us" or (unit == "s" and not value):
        return f"{value / scale:.0f} {unit}"
    number = value / scale
    places = 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    return f"{number:.{places}f} {unit}" if abs(number) >= 1 else f"{number:.3g} {unit}"


def format_seconds(value: float) -> str:
    """Format a duration: "12.1 s", "4.10 ms", "310 us"."""
    return format_quantity(value, "e2e_s")


def merge_findings(found: Sequence[SweepFinding]) -> list[SweepFinding]:
    """Merge similar findings about one board and workload each: across boards, then across workloads of the same ones.

    Boards have clocks of their own, so that findings about a clock are merged whatever its values; a board's workloads
    share them.
    """
    boards = _merge_similar(found, lambda one: (one.workloads, one.statements[0].subject(general=True)))
    return _merge_similar(boards, lambda one: (tuple(sorted(one.boards)), one.statements[0].subject()))


def _merge_similar(found: Sequence[SweepFinding], key: Callable[[SweepFinding], Hashable]) -> list[SweepFinding]:
    merged: list[SweepFinding] = []
    for group in group_by(found, lambda one: (one.kind, one.work, one.label, key(one))).values():
        rest = sorted(group, key=lambda one: -one.strength)
        while rest:
            first = rest[0]
            similar = [first, *(one for one in rest[1:] if _is_similar(first, one))]
            whole = _merge_group(similar)
            merged.append(whole or first)
            rest = [one for one in rest[1:] if whole is None or not any(one is other for other in similar)]
    return merged


def _is_similar(first: SweepFinding, other: SweepFinding) -> bool:
    """Return whether two findings can be merged without losing time or energy; for workers, any of their statements."""
    if MAX_STRENGTH_RATIO * other.strength < first.strength:
        return False
    pairs = list(zip(first.statements, other.statements, strict=False))
    if first.kind == "workers":
        same_length = len(first.statements) == len(other.statements)
        return same_length and all(_merge_statements(pair) is not None for pair in pairs)
    both = _merge_statements(pairs[0])
    return both is not None and _list_totals(both) == _list_totals(pairs[0][0])


def _list_totals(statement: FindingStatement) -> list[str]:
    return [one.quantity for one in statement.figures if one.quantity in (*TOTAL_QUANTITIES, "first_e2e_s")]


def _merge_group(group: Sequence[SweepFinding]) -> SweepFinding | None:
    """Merge all findings into one; None if there is one only, or their main statements have nothing in common."""
    statements = [_merge_statements(own) for own in zip(*(one.statements for one in group), strict=False)]
    if len(group) == 1 or statements[0] is None:
        return None
    return replace(
        group[0],
        statements=tuple(one for one in statements if one is not None),
        evidence=tuple(line for one in group for line in _collect_evidence(one)),
        strength=max(one.strength for one in group),
        points=tuple(dict.fromkeys(key for one in group for key in one.points)),
        label=weakest_label([one.label for one in group]),
        boards=tuple(dict.fromkeys(board for one in group for board in one.boards)),
        workloads=tuple(dict.fromkeys(workload for one in group for workload in one.workloads)),
    )


def _collect_evidence(finding: SweepFinding) -> tuple[str, ...]:
    """Return a merged finding's evidence as it is, and that of another one after its title."""
    if len(finding.boards) * len(finding.workloads) > 1:
        return finding.evidence
    return (render_finding(finding).title, *finding.evidence[:MAX_EVIDENCE])


def _merge_statements(statements: Sequence[FindingStatement]) -> FindingStatement | None:
    """Merge statements to the figures that change in the same direction, as ranges; None if there are none."""
    first = statements[0]
    same = all(one.subject() == first.subject() for one in statements)
    if not same and len({one.subject(general=True) for one in statements}) > 1:
        return None
    ranges = [_merge_figure(own, statements) for own in first.figures]
    figures = tuple(one for one in ranges if one is not None)
    if first.figures and not figures:
        return None
    terms = first.terms if same else {"knob": first.terms["knob"]}
    remark = first.remark if all(one.remark == first.remark for one in statements) else ""
    return replace(first, terms=terms, figures=figures, remark=remark)


def _merge_figure(own: FindingFigure, statements: Sequence[FindingStatement]) -> FindingFigure | None:
    every = [one for each in statements for one in each.figures if one.quantity == own.quantity]
    if len(every) < len(statements) or len({one.low > 1.0 for one in every}) > 1:
        return None
    return FindingFigure(own.quantity, min(one.low for one in every), max(one.high for one in every))


def rank_findings(found: Sequence[SweepFinding]) -> tuple[SweepFinding, ...]:
    """Return the findings by decreasing importance; ``strength`` becomes the value by which they are ordered."""
    counts: Counter[str] = Counter()
    ranked: list[SweepFinding] = []
    for one in sorted(found, key=lambda one: -one.strength):
        ranked.append(replace(one, strength=one.strength * REPEAT_WEIGHT ** counts[one.kind]))
        counts[one.kind] += 1
    return tuple(sorted(ranked, key=lambda one: -one.strength))
