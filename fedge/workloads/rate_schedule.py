"""The learning rate of each round, by a scheduler of torch that is stepped once a round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from fedge.errors import BadInput, UnknownName
from fedge.experiment import ScheduleSpec, WorkloadSpec
from fedge.yaml_files import format_value

FIELD = "workload.schedule"


def find_rate(work: WorkloadSpec, number: int) -> float:
    """Return the learning rate of round ``number``, counted from 1.

    Raises:
        BadInput: The schedule is unknown, or does not accept its options.
    """
    if work.schedule is None:
        return work.learning_rate
    known, following = _open_rates(work.learning_rate, work.schedule.name, tuple(work.schedule.options.items()))
    try:
        known.extend(islice(following, max(0, number - len(known))))
    except BadInput:
        _open_rates.cache_clear()  # an iterator that failed is at its end
        raise
    return known[number - 1]


def check_schedule(work: WorkloadSpec, rounds: int) -> None:
    """Raise ``BadInput`` unless the schedule gives every round a finite rate of at least 0."""
    for rate in (find_rate(work, number) for number in range(1, rounds + 1)):
        if not 0 <= rate < math.inf:
            raise BadInput(FIELD, f"a learning rate of {rate:g}", "a schedule that stays at 0 or above, and finite")


@lru_cache(maxsize=8)
def _open_rates(first: float, name: str, options: tuple[tuple[str, Any], ...]) -> tuple[list[float], Iterator[float]]:
    """Return a schedule's rates so far, at first none, and an iterator of those that follow."""
    return [], _iter_rates(first, ScheduleSpec(name=name, options=dict(options)))


def _iter_rates(first: float, spec: ScheduleSpec) -> Iterator[float]:
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=first)
    kind: Any = getattr(torch.optim.lr_scheduler, spec.name, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        names = sorted(name for name in dir(torch.optim.lr_scheduler) if name.endswith("LR"))
        raise UnknownName(f"{FIELD}.name", spec.name, tuple(names))
    make: Any = kind  # its options are the user's
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.options.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = make(optimizer, **options)
        while True:
            yield float(optimizer.param_groups[0]["lr"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no step of the optimiser precedes the schedule's
                steps.step()
    except Exception as error:
        right = f"a class of torch.optim.lr_scheduler that needs numbers alone, and its options ({error})"
        raise BadInput(FIELD, format_value(spec.model_dump()), " ".join(right.split())) from error
