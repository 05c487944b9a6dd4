"""Arrival times of inference requests: constant, Poisson, bursty or with a rate schedule; reproducible from a seed."""

import itertools
import math
import random
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Tuple

from fedge.worker.refusal import BadField, get_count, get_number

KINDS = ("constant", "poisson", "bursts", "dynamic")
BURST_FACTOR = 4.0
"""Default rate within a burst, as a multiple of the mean rate; with the lengths below 40 % of requests are in
bursts.
"""
BURST_S = 1.0
QUIET_S = 9.0
"""Default mean lengths of a burst and of the quiet time between two, in seconds: one burst in about ten seconds."""
MOST_HZ = 10000.0
"""Highest mean rate, in 1/s. A safety limit: generating and counting a request costs the worker microseconds."""
MOST_AT_ONCE_HZ = BURST_FACTOR * MOST_HZ
"""Highest instantaneous rate, in 1/s."""
LEAST_PIECE_S = 1e-3
"""Shortest time between two rate changes, in seconds: bounds the work of finding the next arrival."""
SAME_RATE_RATIO = 1e-6
"""Relative difference below which two rates count as equal (floating-point rounding)."""

Piece = Tuple[float, float]
"""A stretch of constant rate: its length in seconds and its rate in 1/s."""


class Arrivals(NamedTuple):
    """An arrival process with a mean rate of ``rate_hz`` requests per second, whatever its kind.

    Attributes:
        kind: ``constant``: one request every ``1 / rate_hz`` seconds. ``poisson``: a Poisson process. ``bursts``: a
            Poisson process whose rate alternates between bursts and quiet times of random (exponential) length.
            ``dynamic``: a Poisson process with the rate schedule ``rates``.
        burst_factor: Rate within a burst, as a multiple of ``rate_hz``; the quiet rate follows from the mean.
        rates: Rate schedule of ``dynamic``: pairs of seconds and requests per second, repeated endlessly.
    """

    kind: str
    rate_hz: float
    seed: int = 0
    burst_factor: float = BURST_FACTOR
    burst_s: float = BURST_S
    quiet_s: float = QUIET_S
    rates: Tuple[Piece, ...] = ()


def arrival_times(arrivals: Arrivals, begin_s: float = 0.0) -> Iterator[float]:
    """Generate endless arrival times.

    The process begins at ``begin_s``.

    Returns:
        Non-decreasing times in seconds, on the clock of ``begin_s``.
    """
    if arrivals.kind == "constant":
        return (begin_s + number / arrivals.rate_hz for number in itertools.count(1))
    chance = random.Random(arrivals.seed)
    return _poisson_times(_rate_pieces(arrivals, chance), chance, begin_s)


def parse_arrivals(fields: Mapping[str, Any]) -> Arrivals:
    """Parse the fields of an arrival process.

    Args:
        fields: Values by the names of ``Arrivals``. For ``dynamic`` the mean rate follows from ``rates``: ``rate_hz``
            may be left out, otherwise it must agree with them.

    Raises:
        BadField: A field is unknown, of the wrong type or out of range.
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
    """Return the mean rate over all pieces, weighted by their lengths, in 1/s."""
    return math.fsum(length_s * rate for length_s, rate in pieces) / math.fsum(length_s for length_s, _ in pieces)


def _poisson_times(pieces: Iterator[Piece], chance: random.Random, now_s: float) -> Iterator[float]:
    """Generate a Poisson process with a piecewise constant rate, by inverting the integral of the rate."""
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
    # The first state is random as well, so that the mean rate holds from the first second on.
    quiet = chance.random() < arrivals.quiet_s / (arrivals.quiet_s + arrivals.burst_s)
    while True:
        mean_s, rate_hz = (arrivals.quiet_s, quiet_hz) if quiet else (arrivals.burst_s, burst_hz)
        yield mean_s * _exponential(chance), rate_hz
        quiet = not quiet


def quiet_factor(arrivals: Arrivals) -> float:
    """Return the rate between bursts as a multiple of the mean rate; negative if the bursts alone exceed the mean."""
    return 1.0 - (arrivals.burst_factor - 1.0) * arrivals.burst_s / arrivals.quiet_s


def _exponential(chance: random.Random) -> float:
    return -math.log(1.0 - chance.random())


def _parse_rate_hz(fields: Mapping[str, Any]) -> float:
    rate_hz = _number_above(fields, "rate_hz", 0.0)
    if rate_hz > MOST_HZ:
        raise BadField("rate_hz", "{:g}".format(rate_hz), "more than 0 and at most {:g}".format(MOST_HZ))
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
    names = [where + "[0]", where + "[1]"]
    length_s, rate_hz = (get_number(dict(zip(names, pair)), name) for name in names)
    if length_s < LEAST_PIECE_S or not 0.0 <= rate_hz <= MOST_AT_ONCE_HZ:
        right = "{:g} seconds or more, and a rate from 0 to {:g}".format(LEAST_PIECE_S, MOST_AT_ONCE_HZ)
        raise BadField(where, repr(pair)[:80], right)
    return length_s, rate_hz


def _number_above(fields: Mapping[str, Any], name: str, least: float) -> float:
    value = get_number(fields, name)
    if value <= least:
        raise BadField(name, str(value), "a number above {:g}".format(least))
    return value
