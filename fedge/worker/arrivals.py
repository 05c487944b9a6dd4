"""When requests arrive: evenly, at random, in bursts, or at rates that change; a seed fixes every time."""

import itertools
import math
import random
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Tuple

from fedge.worker.request_fields import BadField, get_count, get_number

KINDS = ("constant", "poisson", "bursts", "dynamic")
BURST_FACTOR = 4.0
"""The rate within a burst, as a multiple of the mean rate. Chosen by us."""
BURST_S = 1.0
QUIET_S = 9.0
"""Mean lengths of a burst and of the quiet between two. Chosen by us."""
MOST_HZ = 10000.0
"""The highest mean rate: making and counting a request takes microseconds of the worker's own. Chosen by us."""
MOST_AT_ONCE_HZ = BURST_FACTOR * MOST_HZ
"""The highest rate at any time."""
LEAST_PIECE_S = 1e-3
"""Rates change no more often than this, or finding the next arrival would take for ever. Chosen by us."""
SAME_RATE_RATIO = 1e-6
"""Rates that differ relatively by less than this are the same."""

Piece = Tuple[float, float]
"""Seconds, and the rate in them in 1/s."""


class Arrivals(NamedTuple):
    """How requests arrive, ``rate_hz`` of them each second in the mean, whatever the kind.

    ``constant``: one every ``1 / rate_hz`` seconds. ``poisson``: at random, independently. ``bursts``: at random too,
    at ``burst_factor`` times the mean rate for ``burst_s`` and so much more slowly for ``quiet_s`` that the mean comes
    out; both lengths are themselves random (exponential) and given by their means. ``dynamic``: at random at the
    ``rates``, pairs of seconds and 1/s that repeat.
    """

    kind: str
    rate_hz: float
    seed: int = 0
    burst_factor: float = BURST_FACTOR
    burst_s: float = BURST_S
    quiet_s: float = QUIET_S
    rates: Tuple[Piece, ...] = ()


def arrival_times(arrivals: Arrivals, begin_s: float = 0.0) -> Iterator[float]:
    """The endless arrival times in seconds, never decreasing, from ``begin_s`` on."""
    if arrivals.kind == "constant":
        return (begin_s + number / arrivals.rate_hz for number in itertools.count(1))
    chance = random.Random(arrivals.seed)
    return _poisson_times(_rate_pieces(arrivals, chance), chance, begin_s)


def parse_arrivals(fields: Mapping[str, Any]) -> Arrivals:
    """The arrivals that ``fields`` describe, named as in ``Arrivals``; raises ``BadField``.

    For ``dynamic`` the mean rate follows from ``rates``: ``rate_hz`` may be left out, or has to agree with them.
    """
    unknown = sorted(set(fields) - set(Arrivals._fields))
    if unknown:
        raise BadField("arrivals", repr(unknown[0]), "fields: " + ", ".join(Arrivals._fields))
    kind = fields.get("kind", "poisson")
    if kind not in KINDS:
        raise BadField("kind", repr(kind), "one of " + ", ".join(KINDS))
    seed = get_count(fields, "seed", 0)
    if kind == "dynamic":
        return _parse_dynamic(fields, seed)
    found = Arrivals(kind, _parse_rate_hz(fields), seed)
    return _parse_bursts(fields, found) if kind == "bursts" else found


def mean_rate_hz(pieces: Tuple[Piece, ...]) -> float:
    """Arrivals per second over all pieces."""
    return math.fsum(length_s * rate for length_s, rate in pieces) / math.fsum(length_s for length_s, _ in pieces)


def _poisson_times(pieces: Iterator[Piece], chance: random.Random, now_s: float) -> Iterator[float]:
    """A Poisson process whose rate is constant within each piece, by inversion of its integral."""
    left = _exponential(chance)
    for length_s, rate_hz in pieces:
        end_s = now_s + length_s
        while left < (end_s - now_s) * rate_hz:
            now_s += left / rate_hz
            yield now_s
            left = _exponential(chance)
        left -= (end_s - now_s) * rate_hz
        now_s = end_s


def _rate_pieces(arrivals: Arrivals, chance: random.Random) -> Iterator[Piece]:
    if arrivals.kind == "dynamic":
        return itertools.cycle(arrivals.rates)
    if arrivals.kind == "bursts":
        return _burst_pieces(arrivals, chance)
    return iter([(math.inf, arrivals.rate_hz)])


def _burst_pieces(arrivals: Arrivals, chance: random.Random) -> Iterator[Piece]:
    quiet_hz = arrivals.rate_hz * quiet_factor(arrivals)
    burst_hz = arrivals.rate_hz * arrivals.burst_factor
    # Where it begins is random as well, so that the mean rate holds from the first second on.
    quiet = chance.random() < arrivals.quiet_s / (arrivals.quiet_s + arrivals.burst_s)
    while True:
        mean_s, rate_hz = (arrivals.quiet_s, quiet_hz) if quiet else (arrivals.burst_s, burst_hz)
        yield mean_s * _exponential(chance), rate_hz
        quiet = not quiet


def quiet_factor(arrivals: Arrivals) -> float:
    """The rate between bursts as a multiple of the mean rate; below 0 where the bursts alone exceed the mean."""
    return 1.0 - (arrivals.burst_factor - 1.0) * arrivals.burst_s / arrivals.quiet_s


def _exponential(chance: random.Random) -> float:
    return -math.log(1.0 - chance.random())


def _parse_rate_hz(fields: Mapping[str, Any]) -> float:
    rate_hz = _number_above(fields, "rate_hz", 0.0)
    if rate_hz > MOST_HZ:
        raise BadField("rate_hz", "{:g}".format(rate_hz), "{:g} at most".format(MOST_HZ))
    return rate_hz


def _parse_bursts(fields: Mapping[str, Any], found: Arrivals) -> Arrivals:
    least = {"burst_factor": 0.0, "burst_s": LEAST_PIECE_S, "quiet_s": LEAST_PIECE_S}
    given: Dict[str, Any] = {name: _number_above(fields, name, least[name]) for name in least if name in fields}
    found = found._replace(**given)
    if found.burst_factor * found.rate_hz > MOST_AT_ONCE_HZ:
        right = "{:g} at most at {:g}/s".format(MOST_AT_ONCE_HZ / found.rate_hz, found.rate_hz)
        raise BadField("burst_factor", str(found.burst_factor), right)
    if found.burst_factor < 1.0 or quiet_factor(found) < 0.0:
        most = 1.0 + found.quiet_s / found.burst_s
        raise BadField("burst_factor", str(found.burst_factor), "1 to {:g} (1 + quiet_s / burst_s)".format(most))
    return found


def _parse_dynamic(fields: Mapping[str, Any], seed: int) -> Arrivals:
    rates = fields.get("rates")
    if not isinstance(rates, (list, tuple)) or not rates:
        raise BadField("rates", repr(rates)[:80], "pairs of seconds and 1/s")
    pieces = tuple(_parse_piece(number, one) for number, one in enumerate(rates))
    mean_hz = mean_rate_hz(pieces)
    if mean_hz <= 0.0:
        raise BadField("rates", "0 everywhere", "at least one rate above 0")
    if mean_hz > MOST_HZ:
        raise BadField("rates", "{:g}/s in the mean".format(mean_hz), "{:g}/s at most".format(MOST_HZ))
    said_hz = _number_above(fields, "rate_hz", 0.0) if "rate_hz" in fields else mean_hz
    if abs(said_hz - mean_hz) > SAME_RATE_RATIO * mean_hz:
        raise BadField("rate_hz", "{:g}".format(said_hz), "{:g}, the mean of `rates`, or nothing".format(mean_hz))
    return Arrivals("dynamic", mean_hz, seed, rates=pieces)


def _parse_piece(number: int, pair: Any) -> Piece:
    where = "rates[{}]".format(number)
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise BadField(where, repr(pair)[:80], "a pair of seconds and 1/s")
    fields = {"seconds": pair[0], "rate": pair[1]}
    length_s, rate_hz = get_number(fields, "seconds"), get_number(fields, "rate")
    if length_s < LEAST_PIECE_S or not 0.0 <= rate_hz <= MOST_AT_ONCE_HZ:
        right = "{:g} seconds or more, and a rate from 0 to {:g}".format(LEAST_PIECE_S, MOST_AT_ONCE_HZ)
        raise BadField(where, repr(pair)[:80], right)
    return length_s, rate_hz


def _number_above(fields: Mapping[str, Any], name: str, least: float) -> float:
    value = get_number(fields, name)
    if value <= least:
        raise BadField(name, str(value), "a number above {:g}".format(least))
    return value
