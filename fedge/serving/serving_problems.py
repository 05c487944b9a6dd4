"""Optimisation problems of a board that trains, infers or does both: limits on power and latency, and the arrival rate.

Symbols: P power budget, L latency budget, a arrival rate, b batch size.

References:
    Fulcrum, arXiv 2509.20205: the three families and their grids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedge.errors import BadInput
from fedge.yaml_files import read_yaml

ProblemFamily = Literal["train", "infer", "concurrent"]
FAMILIES: tuple[ProblemFamily, ...] = ("train", "infer", "concurrent")
BATCH_SIZES = (1, 4, 16, 32, 64)
"""Inference batch sizes among which Fulcrum chooses."""


@dataclass(frozen=True, slots=True)
class ServingProblem:
    """One problem; training alone has neither requests nor a latency budget.

    Attributes:
        family: ``train``, ``infer`` or ``concurrent``.
        power_w: P: limit on the module power of every job, watts.
        latency_s: L: largest time from a request's arrival to its answer; None for training alone.
        rate_hz: a: requests per second; None for training alone.

    Raises:
        BadInput: If a value is missing, superfluous or not positive.
    """

    family: ProblemFamily
    power_w: float
    latency_s: float | None = None
    rate_hz: float | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise BadInput("problem.family", repr(self.family), f"one of {', '.join(FAMILIES)}")
        numbers = {"power_w": self.power_w}
        if self.family != "train":
            numbers |= {"latency_s": self.latency_s or 0.0, "rate_hz": self.rate_hz or 0.0}
        elif self.latency_s is not None or self.rate_hz is not None:
            raise BadInput("problem", "latency_s or rate_hz with training alone", "family infer or concurrent")
        for name, value in numbers.items():
            if not 0.0 < value < float("inf"):
                raise BadInput(f"problem.{name}", str(getattr(self, name)), "a number above 0")


def default_problems(family: ProblemFamily) -> tuple[ServingProblem, ...]:
    """Return Fulcrum's grid of a family: 41 problems of training, 5,863 of inference, 6,560 of both."""
    powers = [float(watts) for watts in range(10, 51)]
    if family == "train":
        return tuple(ServingProblem("train", power) for power in powers)
    if family == "infer":
        latencies = [ms / 1000 for ms in range(50, 151, 10)]
        rates = [float(rate) for rate in range(30, 91, 5)]
    else:
        latencies = [tenths / 10 for tenths in range(5, 21)]
        rates = [float(rate) for rate in range(30, 121, 10)]
    every = itertools.product(powers, latencies, rates)
    return tuple(ServingProblem(family, power, latency, rate) for power, latency, rate in every)


def select_family(trains: bool, infers: bool) -> ProblemFamily:
    """Return the problem family that the given kinds of tables form."""
    return "concurrent" if trains and infers else "train" if trains else "infer"


def read_problems(path: Path, family: ProblemFamily) -> tuple[ServingProblem, ...]:
    """Read serving problems from a YAML or JSON file.

    ``family`` is that of problems that have a rate but name no family.

    Raises:
        BadInput: If the file is invalid.
    """
    right = "a YAML or JSON file that can be read: a list of problems"
    if not path.is_file():
        raise BadInput("--problems", str(path), f"`default`, or {right}")
    entries = read_yaml(path)
    if not isinstance(entries, list):
        what = {type(None): "an empty file", dict: "a mapping"}.get(type(entries), f"a {type(entries).__name__}")
        raise BadInput("--problems", f"{path}: {what}", f"{right}, e.g. - {{power_w: 30, latency_s: 1, rate_hz: 60}}")
    if family == "infer" and isinstance(entries, list):
        entries = [_mark_inference(entry) for entry in entries]
    return parse_problems(entries, str(path))


def _mark_inference(entry: object) -> object:
    """Mark a problem with a rate as inference if there is no training table."""
    if isinstance(entry, dict) and "family" not in entry and entry.get("rate_hz") is not None:
        return {**entry, "family": "infer"}
    return entry


def parse_problems(entries: object, where: str) -> tuple[ServingProblem, ...]:
    """Parse the problems of a file.

    Raises:
        BadInput: If an entry is invalid.
    """
    right = "a list of problems, each with family, power_w, and for requests latency_s and rate_hz"
    if not isinstance(entries, list) or not entries:
        raise BadInput(where, type(entries).__name__ if not isinstance(entries, list) else "an empty list", right)
    return tuple(_iter_problems(entries, where))


def _iter_problems(entries: list[object], where: str) -> Iterator[ServingProblem]:
    fields = ("family", "power_w", "latency_s", "rate_hz")
    for number, entry in enumerate(entries, 1):
        place = f"{where}: problem {number}"
        if not isinstance(entry, Mapping) or not set(entry) <= set(fields) or "power_w" not in entry:
            raise BadInput(place, str(entry)[:80], f"a mapping with {', '.join(fields)}")
        family = entry.get("family", "train" if entry.get("rate_hz") is None else "concurrent")
        try:
            numbers = {name: float(entry[name]) for name in fields[1:] if entry.get(name) is not None}
        except (TypeError, ValueError) as error:
            raise BadInput(place, str(dict(entry))[:80], "numbers") from error
        try:
            yield ServingProblem(family, **numbers)
        except BadInput as error:
            raise BadInput(f"{place}, {error.where}", error.got, error.right) from error
