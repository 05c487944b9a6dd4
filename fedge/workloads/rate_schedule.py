"""The learning rate of each round, by a scheduler of torch that is stepped once a round."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

from fedge.errors import BadInput
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
    return _compute_rates(work.learning_rate, work.schedule.model_dump_json(), number)[number - 1]


def check_schedule(work: WorkloadSpec, rounds: int) -> None:
    """Raise ``BadInput`` unless the schedule gives every round a rate of at least 0."""
    if work.schedule is None:
        return
    rates = [find_rate(work, number) for number in (rounds, *range(1, rounds))]
    if min(rates) < 0:
        raise BadInput(FIELD, f"a learning rate of {min(rates):g}", "a schedule that stays at 0 or above")


@lru_cache(maxsize=8)
def _compute_rates(first: float, schedule: str, rounds: int) -> tuple[float, ...]:
    """Return the rates of the first rounds; more are computed at a time than asked for, since rounds follow."""
    import torch

    spec = ScheduleSpec.model_validate_json(schedule)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=first)
    kind: Any = getattr(torch.optim.lr_scheduler, spec.name, None)
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.options.items()}
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of the optimiser precedes the schedule's
        try:
            steps = kind(optimizer, **options)
            for _ in range(rounds):
                rates.append(float(optimizer.param_groups[0]["lr"]))
                steps.step()
        except Exception as error:
            right = f"a class of torch.optim.lr_scheduler that needs numbers alone, and its options ({error})"
            raise BadInput(FIELD, format_value(spec.model_dump()), " ".join(right.split())) from error
    return tuple(rates)
