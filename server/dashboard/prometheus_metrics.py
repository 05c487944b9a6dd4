"""Prometheus metrics of the fleet, with a bounded number of series and counters that never decrease."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from fedge.telemetry.intake import KINDS
from server.dashboard.views import BoardView, FleetView

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MAX_BOARD_SERIES = 1000
"""Boards above which metrics are aggregated by board kind; a default that bounds the load on Prometheus."""
MAX_KIND_LABELS = 64
"""Board kinds with a label of their own; the others share ``OTHER_LABEL``. A default that bounds the number of
series.
"""
MAX_LABEL_LENGTH = 64
"""Characters of a label's value; a default that keeps labels readable."""
MAX_COUNTERS = 20_000
"""Counters whose totals are kept; a default of more than two fleets of ``MAX_BOARD_SERIES`` boards, to bound memory."""
OTHER_LABEL = "other"

Labels = tuple[str, ...]
BOARD_LABELS: Labels = ("board", "device")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric, with its values by label values."""

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    labels: Labels
    values: Mapping[Labels, float]


@dataclass(slots=True)
class CounterTotals:
    """Counter totals since the service started; they never decrease, even if a run restarts or resumes.

    Attributes:
        before: Sum of each counter before its last reset.
        last: Last value of each counter.
    """

    before: dict[tuple[str, Labels], float] = field(default_factory=dict)
    last: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def accumulate(self, family: MetricFamily) -> MetricFamily:
        """Return a counter's totals since the service started; a gauge is returned unchanged."""
        if family.kind != "counter":
            return family
        return replace(
            family, values={key: self._accumulate_value((family.name, key), now) for key, now in family.values.items()}
        )

    def _accumulate_value(self, key: tuple[str, Labels], now: float) -> float:
        last = self.last.pop(key, 0.0)
        base = self.before.pop(key, 0.0) + (last if now < last else 0.0)
        # Inserted again, so that the least recently seen counter comes first.
        self.last[key], self.before[key] = now, base
        while len(self.last) > MAX_COUNTERS:
            oldest = next(iter(self.last))
            del self.last[oldest], self.before[oldest]
        return base + now


def render_exposition(view: FleetView, now_s: float | None = None, totals: CounterTotals | None = None) -> bytes:
    """Return the metrics in Prometheus' text format, version 0.0.4.

    Args:
        view: The view.
        now_s: Unix time in seconds; None for the present.
        totals: Keeps counters from one call to the next; None shows the counters of the current run only.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    found = build_families(view, time.time() if now_s is None else now_s)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([totals.accumulate(family) if totals else family for family in found]))
    return generate_latest(registry)


def make_exposition(now_s: Callable[[], float] = time.time) -> Callable[[FleetView], bytes]:
    """Return a function that renders a view, with counters that never decrease during its lifetime."""
    totals = CounterTotals()
    return lambda view: render_exposition(view, now_s(), totals)


def build_families(view: FleetView, now_s: float) -> list[MetricFamily]:
    """Build every metric of a view; unknown and infinite values are left out.

    Args:
        view: The view.
        now_s: Unix time in seconds.
    """
    return [
        *_build_run_families(view, now_s),
        *_build_round_families(view),
        *_build_board_families(view, now_s),
        *_build_refusal_families(view),
    ]


class _Collector:
    """Passes prepared metrics to prometheus_client; stateless."""

    def __init__(self, found: Sequence[MetricFamily]) -> None:
        self._families = found

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._families:
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name.removesuffix("_total"), family.help, labels=family.labels)
            for labels, value in family.values.items():
                metric.add_metric(labels, value)
            yield metric


def _gauge(name: str, text: str, value: float | None) -> MetricFamily:
    return MetricFamily(name, help=text, kind="gauge", labels=(), values=_keep_finite({(): value}))


def _counter(name: str, text: str, value: float) -> MetricFamily:
    return MetricFamily(name, help=text, kind="counter", labels=(), values=_keep_finite({(): max(0.0, value)}))


def _keep_finite(values: Mapping[Labels, float | None]) -> dict[Labels, float]:
    return {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}


def _build_run_families(view: FleetView, now_s: float) -> Iterator[MetricFamily]:
    run, summary = view.run, view.summary
    about = tuple(to_label(text) for text in (run.name, run.policy, run.backend, run.state))
    names = ("run", "policy", "backend", "state")
    yield MetricFamily(
        "fedge_run_info",
        help="1, with what the run is that is shown, in labels.",
        kind="gauge",
        labels=names,
        values={about: 1.0},
    )
    yield _gauge("fedge_run_planned_rounds", "Rounds that the run is to have.", run.rounds)
    yield _gauge("fedge_run_round", "The last round that is over, of the run that is shown.", summary.round)
    yield _gauge("fedge_run_clock_seconds", "The fleet's clock at the last round's end.", summary.clock_s)
    age_s = None if run.changed_at_s is None else max(0.0, now_s - run.changed_at_s)
    yield _gauge("fedge_run_row_age_seconds", "Time since the run's last row was written.", age_s)
    yield _gauge("fedge_run_accuracy_ratio", "The model's accuracy after the last round.", summary.accuracy)
    yield _gauge("fedge_run_loss", "The model's loss after the last round; it has no unit.", summary.loss)
    saved: dict[Labels, float | None] = {("maxn",): summary.saving, ("maxn-parked",): summary.saving_parked}
    text = "Energy saved against MAXN (parked: waiting in the lowest mode), over the rounds whose truth is known."
    yield MetricFamily(
        "fedge_run_saving_ratio", help=text, kind="gauge", labels=("baseline",), values=_keep_finite(saved)
    )
    rest = "Energy of boards while they took no part, of the run that is shown; not in fedge_run_energy_joules."
    yield _gauge("fedge_run_resting_energy_joules", rest, summary.resting_energy_j)
    yield _counter("fedge_rounds_total", "Rounds that are over.", summary.round)
    results = {"done": sum(point.done for point in view.rounds)}
    results |= {"late": summary.late, "failed": summary.failed, "cancelled": summary.cancelled}
    text = "What became of boards in rounds; a board counts once per round that it took part in."
    yield MetricFamily(
        "fedge_results_total",
        help=text,
        kind="counter",
        labels=("status",),
        values=_keep_finite({(k,): v for k, v in results.items()}),
    )
    yield _gauge("fedge_page_problem", "1 while the figures cannot be brought up to date.", float(bool(view.problem)))


def _build_round_families(view: FleetView) -> Iterator[MetricFamily]:
    last = view.rounds[-1] if view.rounds else None
    yield _gauge("fedge_round_duration_seconds", "How long the last round took.", last.round_s if last else None)
    yield _gauge("fedge_round_deadline_seconds", "The last round's deadline.", last.deadline_s if last else None)
    yield _gauge(
        "fedge_round_energy_joules",
        "Energy of the boards that took part in the last round.",
        last.energy_j if last else None,
    )
    names = ("selected", "done", "late", "failed", "cancelled")
    counted: dict[Labels, float] = {(name,): float(getattr(last, name)) for name in names} if last else {}
    yield MetricFamily(
        "fedge_round_boards",
        help="Boards of the last round, by what became of them.",
        kind="gauge",
        labels=("status",),
        values=counted,
    )


def _build_board_families(view: FleetView, now_s: float) -> Iterator[MetricFamily]:
    kinds = _label_kinds(view.boards)
    states = Counter((kinds[board.device], to_label(board.state)) for board in view.boards)
    counted: dict[Labels, float] = {key: float(count) for key, count in states.items()}
    text = "Boards by what they do, or what became of them in the last round."
    yield MetricFamily("fedge_boards", help=text, kind="gauge", labels=("device", "state"), values=counted)
    groups = _group_boards(view.boards, kinds)

    def of(name: str, text: str, read: Callable[[BoardView], float | None], over: Reducer = sum) -> MetricFamily:
        joined = {key: _reduce_known(map(read, boards), over) for key, boards in groups.items()}
        return MetricFamily(
            name,
            help=text,
            kind="counter" if name.endswith("_total") else "gauge",
            labels=BOARD_LABELS,
            values=_keep_finite(joined),
        )

    def age_s(board: BoardView) -> float | None:
        return None if board.seen_at_s is None else max(0.0, now_s - board.seen_at_s)

    many = "; above 1,000 boards of each kind together"
    yield of("fedge_run_energy_joules", f"Energy of the rounds of the run that is shown{many}.", _energy_j)
    yield of("fedge_board_energy_joules_total", f"Energy of the rounds since the page was started{many}.", _energy_j)
    yield of("fedge_board_power_watts", f"Power now, else of the last round's work{many}.", lambda board: board.power_w)
    hot = "; above 1,000 boards the hottest of each kind"
    text = f"Temperature now, else the last round's{hot}."
    yield of("fedge_board_temperature_celsius", text, lambda board: board.temperature_c, max)
    text = "The share of the round's minibatches that is done; above 1,000 boards the mean of each kind."
    yield of("fedge_board_progress_ratio", text, lambda board: board.progress, _mean)
    text = "Time since the board last told of itself; above 1,000 boards the oldest of each kind."
    yield of("fedge_board_sample_age_seconds", text, age_s, max)
    text = "1 where the board is heard of, 0 where it has fallen silent; above 1,000 boards how many are heard of."
    yield of("fedge_board_up", text, lambda board: float(board.state != "offline"))


def _build_refusal_families(view: FleetView) -> Iterator[MetricFamily]:
    text = "Messages of a board's telemetry that were not taken, by reason; above 1,000 boards of each kind together."
    kinds, counted = _label_kinds(view.boards), Counter[Labels]()
    for (board, device), boards in _group_boards(view.boards, kinds).items():
        for one in boards:
            for reason, count in _count_by_reason(one.refused).items():
                counted[board, device, reason] += count
    names = (*BOARD_LABELS, "reason")
    yield MetricFamily(
        "fedge_board_refused_messages_total", help=text, kind="counter", labels=names, values=_keep_finite(counted)
    )
    text = "Messages of telemetry that were not taken, of all boards, by reason."
    whole: dict[Labels, float] = {(reason,): float(count) for reason, count in _count_by_reason(view.refused).items()}
    yield MetricFamily("fedge_refused_messages_total", help=text, kind="counter", labels=("reason",), values=whole)


Reducer = Callable[[list[float]], float]


def _energy_j(board: BoardView) -> float | None:
    return max(0.0, board.energy_j) if math.isfinite(board.energy_j) else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _reduce_known(values: Iterable[float | None], over: Reducer) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return over(known) if known else None


def _count_by_reason(refused: Mapping[str, int]) -> Counter[str]:
    """Count refused messages by known reason; accepted messages are left out."""
    counted: Counter[str] = Counter()
    for reason, count in refused.items():
        if reason != "taken" and count >= 0:
            counted[reason if reason in KINDS else OTHER_LABEL] += count
    return counted


def _label_kinds(boards: Sequence[BoardView]) -> dict[str, str]:
    """Return the label of each device; only the most frequent ones have their own."""
    counted = Counter(board.device for board in boards)
    ordered = sorted(counted, key=lambda device: (-counted[device], device))
    own = ordered if len(ordered) <= MAX_KIND_LABELS else ordered[: MAX_KIND_LABELS - 1]
    return {device: to_label(device) if device in own[:MAX_KIND_LABELS] else OTHER_LABEL for device in ordered}


def _group_boards(boards: Sequence[BoardView], kinds: Mapping[str, str]) -> dict[Labels, list[BoardView]]:
    """Group boards into series by ``BOARD_LABELS``: one per board, or one per board kind in a large fleet."""
    groups: dict[Labels, list[BoardView]] = {}
    for board in boards:
        name = to_label(board.name) if len(boards) <= MAX_BOARD_SERIES else ""
        groups.setdefault((name, kinds[board.device]), []).append(board)
    return groups


def to_label(text: str) -> str:
    """Shorten ``text`` to a printable label value; different texts stay different."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_LABEL_LENGTH])
    if plain == text:
        return text
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAX_LABEL_LENGTH - 9]}~{mark}"
