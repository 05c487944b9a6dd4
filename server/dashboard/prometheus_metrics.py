"""Prometheus metrics of the fleet, with a bounded number of series and counters that never decrease."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
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
ROUNDING = 1e-9
"""Relative decrease that is no reset: the sum of a board's rounds differs in its last bits with the order of adding,
which changes when a round's row follows those of its clients.
"""

Labels = tuple[str, ...]
BOARD_LABELS: Labels = ("board", "device")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric, with its values by label values.

    Attributes:
        store: Identifier of the rows that a counter adds up; empty for one that counts since a program's start.
    """

    name: str
    help: str
    kind: Literal["gauge", "counter"]
    labels: Labels
    values: Mapping[Labels, float]
    store: str = ""


@dataclass(slots=True)
class CounterTotals:
    """Counter totals since the service started; they never decrease.

    A counter of another run begins anew, and so does one that falls. One that falls within a run's rows stays where it
    is until it is exceeded: a resumed run drops its last rows and writes them again.

    Attributes:
        before: Sum of each counter before its last reset.
        last: Last value of each counter, and the identifier of the rows that it added up.
    """

    before: dict[tuple[str, Labels], float] = field(default_factory=dict)
    last: dict[tuple[str, Labels], tuple[float, str]] = field(default_factory=dict)

    def accumulate(self, family: MetricFamily) -> MetricFamily:
        """Return a counter's totals since the service started; a gauge is returned unchanged."""
        if family.kind != "counter":
            return family
        totals = {
            key: self._accumulate_value((family.name, key), now, family.store) for key, now in family.values.items()
        }
        return replace(family, values=totals)

    def _accumulate_value(self, key: tuple[str, Labels], now: float, store: str) -> float:
        last, before_store = self.last.pop(key, (0.0, store))
        is_other_run = bool(store and before_store) and store != before_store
        is_same_run = bool(store) and store == before_store
        if now < last and (is_same_run or last * (1 - ROUNDING) <= now):
            now = last
        base = self.before.pop(key, 0.0) + (last if is_other_run or now < last else 0.0)
        # Inserted again, so that the least recently seen counter comes first.
        self.last[key], self.before[key] = (now, store or before_store), base
        while len(self.last) > MAX_COUNTERS:
            oldest = next(iter(self.last))
            del self.last[oldest], self.before[oldest]
        return base + now


def render_exposition(view: FleetView, now_s: float | None = None, totals: CounterTotals | None = None) -> bytes:
    """Return the metrics in Prometheus' text format, version 0.0.4.

    ``totals`` keeps counters from one call to the next; without it they show the current run only.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    families = build_families(view, time.time() if now_s is None else now_s)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([totals.accumulate(family) if totals else family for family in families]))
    return generate_latest(registry)


def make_exposition() -> Callable[[FleetView], bytes]:
    """Return a function that renders a view, with counters that never decrease during its lifetime."""
    totals = CounterTotals()
    return lambda view: render_exposition(view, totals=totals)


def build_families(view: FleetView, now_s: float) -> list[MetricFamily]:
    """Build every metric of a view at unix time ``now_s``; unknown and infinite values are left out."""
    of_rows = [
        *_build_run_families(view, now_s),
        *_build_round_families(view),
        *_build_board_families(view, now_s),
    ]
    return [*(replace(family, store=view.run.store) for family in of_rows), *_build_refusal_families(view)]


class _Collector:
    """Passes prepared metrics to prometheus_client; stateless."""

    def __init__(self, families: Sequence[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._families:
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name.removesuffix("_total"), family.help, labels=family.labels)
            for labels, value in family.values.items():
                metric.add_metric(labels, value)
            yield metric


def _family(name: str, text: str, values: Mapping[Labels, float | None], labels: Labels = ()) -> MetricFamily:
    """Return a metric without unknown and infinite values; a name that ends in ``_total`` is a counter."""
    finite = {key: float(value) for key, value in values.items() if value is not None and math.isfinite(value)}
    return MetricFamily(
        name, help=text, kind="counter" if name.endswith("_total") else "gauge", labels=labels, values=finite
    )


def _figure(name: str, text: str, value: float | None) -> MetricFamily:
    return _family(name, text, {(): value})


def _build_run_families(view: FleetView, now_s: float) -> Iterator[MetricFamily]:
    run, summary = view.run, view.summary
    about = tuple(to_label(text) for text in (run.name, run.policy, run.backend, run.state))
    names = ("run", "policy", "backend", "state")
    yield _family("fedge_run_info", "1, with the run in the labels.", {about: 1.0}, names)
    yield _figure("fedge_run_planned_rounds", "Number of rounds of the run.", run.rounds)
    yield _figure("fedge_run_round", "The last finished round.", summary.round)
    yield _figure("fedge_run_clock_seconds", "The fleet clock at the end of the last round.", summary.clock_s)
    age_s = None if run.changed_at_s is None else max(0.0, now_s - run.changed_at_s)
    yield _figure("fedge_run_row_age_seconds", "Time since the run's last row was written.", age_s)
    yield _figure("fedge_run_accuracy_ratio", "The model's accuracy after the last round.", summary.accuracy)
    yield _figure("fedge_run_loss", "The model's loss after the last round; it has no unit.", summary.loss)
    saved: dict[Labels, float | None] = {("maxn",): summary.saving, ("maxn-parked",): summary.saving_parked}
    text = "Energy saved vs MAXN (parked: MAXN, low idle), over the comparable rounds."
    yield _family("fedge_run_saving_ratio", text, saved, ("baseline",))
    text = "Idle energy of boards that were not selected; not in fedge_run_energy_joules."
    yield _figure("fedge_run_resting_energy_joules", text, summary.resting_energy_j)
    yield _figure("fedge_rounds_total", "Finished rounds.", summary.round)
    done = sum(point.done for point in view.rounds)
    results: dict[Labels, float | None] = {("done",): done, ("late",): summary.late}
    results |= {("failed",): summary.failed, ("cancelled",): summary.cancelled}
    text = "Results of boards in rounds, by outcome."
    yield _family("fedge_results_total", text, results, ("status",))
    yield _figure("fedge_page_problem", "1 while the figures cannot be updated.", bool(view.problem))


def _build_round_families(view: FleetView) -> Iterator[MetricFamily]:
    last = view.rounds[-1] if view.rounds else None
    yield _figure("fedge_round_duration_seconds", "Duration of the last round.", last.round_s if last else None)
    yield _figure("fedge_round_deadline_seconds", "Deadline of the last round.", last.deadline_s if last else None)
    text = "Energy of the boards that took part in the last round."
    yield _figure("fedge_round_energy_joules", text, last.energy_j if last else None)
    statuses = ("selected", "done", "late", "failed", "cancelled") if last else ()
    counted: dict[Labels, float | None] = {(name,): getattr(last, name) for name in statuses}
    yield _family("fedge_round_boards", "Boards of the last round, by outcome.", counted, ("status",))


def _build_board_families(view: FleetView, now_s: float) -> Iterator[MetricFamily]:
    kinds = _label_kinds(view.boards)
    states: Counter[Labels] = Counter((kinds[board.device], to_label(board.state)) for board in view.boards)
    text = "Boards by activity, or by outcome of the last round."
    yield _family("fedge_boards", text, states, ("device", "state"))
    groups = _group_boards(view.boards, kinds)

    def reduce(name: str, text: str, read: Callable[[BoardView], float | None], over: Reducer = sum) -> MetricFamily:
        values = {key: _reduce_known(map(read, boards), over) for key, boards in groups.items()}
        return _family(name, text, values, BOARD_LABELS)

    def age_s(board: BoardView) -> float | None:
        return None if board.seen_at_s is None else max(0.0, now_s - board.seen_at_s)

    yield reduce("fedge_run_energy_joules", "Energy of the run's rounds.", _energy_j)
    text = "Energy of rounds since the page started."
    yield reduce("fedge_board_energy_joules_total", text, _energy_j)
    text = "Current power, else that of the last round's work."
    yield reduce("fedge_board_power_watts", text, lambda board: board.power_w)
    text = "Current temperature, else that of the last round; aggregated: maximum."
    yield reduce("fedge_board_temperature_celsius", text, lambda board: board.temperature_c, max)
    text = "Finished share of the round's steps; aggregated: mean."
    yield reduce("fedge_board_progress_ratio", text, lambda board: board.progress, fmean)
    text = "Time since the last report of the board; aggregated: maximum."
    yield reduce("fedge_board_sample_age_seconds", text, age_s, max)
    text = "1 if the board is online, 0 if it is offline."
    yield reduce("fedge_board_up", text, lambda board: float(board.state != "offline"))


def _build_refusal_families(view: FleetView) -> Iterator[MetricFamily]:
    text = "Refused telemetry messages of a board, by reason."
    counted = Counter[Labels]()
    for (name, device), boards in _group_boards(view.boards, _label_kinds(view.boards)).items():
        for board in boards:
            for reason, count in _count_by_reason(board.refused).items():
                counted[name, device, reason] += count
    yield _family("fedge_board_refused_messages_total", text, counted, (*BOARD_LABELS, "reason"))
    text = "Refused telemetry messages of all boards, by reason."
    whole: dict[Labels, float | None] = {(reason,): n for reason, n in _count_by_reason(view.refused).items()}
    yield _family("fedge_refused_messages_total", text, whole, ("reason",))


Reducer = Callable[[list[float]], float]


def _energy_j(board: BoardView) -> float | None:
    return max(0.0, board.energy_j) if math.isfinite(board.energy_j) else None


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
