"""A fleet study in columns: which experiments it can play, and one run of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedge.decisions.planning import is_pinned
from fedge.errors import BadInput
from fedge.experiment import BOARD_PLACE, Experiment
from fedge.phases import begin_phase
from fedge.studies.fleet.client_columns import build_fleet_columns, start_state
from fedge.studies.fleet.column_comparison import compare_columns
from fedge.studies.fleet.column_plan import PLANNERS
from fedge.studies.fleet.column_rounds import simulate_round
from fedge.studies.fleet.column_selection import COLUMN_SELECTORS
from fedge.studies.fleet.fleet_study_row import FleetRun
from fedge.studies.fleet.kind_table import MAX_KNOWN_MODES

COLUMNS_FROM = 2_000
"""Number of clients from which a study uses columns by default.

The coordinator needs about 0.2 s of CPU time per board and round (fleet40.yaml, 12 rounds), minutes for a round there.
"""
ENGINES = ("coordinator", "columns")
AMBIENT_C = 25.0
"""The default ambient temperature; columns have no temperature, so that another one would change nothing."""
COLUMN_POLICIES = (*PLANNERS, "least-energy-within-deadline", "maxn", "preset:NAME")


def count_clients(experiment: Experiment) -> int:
    """Return the number of boards of the fleet."""
    return sum(entry.count for entry in experiment.fleet)


def check_columns(experiment: Experiment) -> None:
    """Check that the experiment has nothing that columns do not play.

    Raises:
        BadInput: For the first field that would be ignored.
    """
    for field, got, right in _list_unsupported(experiment):
        raise BadInput(field, got, f"{right}, or --engine coordinator: columns do not play this")


def _list_unsupported(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """Yield the field, the value and what columns can play instead."""
    policy, exploration = experiment.policy.name, experiment.exploration
    if policy not in COLUMN_POLICIES and not is_pinned(policy):
        yield "policy.name", repr(policy), f"one of {', '.join(COLUMN_POLICIES)}"
    if experiment.selection.name not in COLUMN_SELECTORS:
        yield "selection.name", repr(experiment.selection.name), f"one of {', '.join(COLUMN_SELECTORS)}"
    if experiment.late.action not in ("accept", "drop"):
        yield "late.action", repr(experiment.late.action), "accept or drop"
    if not experiment.share_samples:
        yield "share_samples", "false", "true: all boards of a kind share one posterior"
    if exploration.modes is None or exploration.modes > MAX_KNOWN_MODES:
        yield "exploration.modes", str(exploration.modes or "null"), f"a number of at most {MAX_KNOWN_MODES}"
    for place, entry in enumerate(experiment.fleet):
        given = {
            "serving": entry.serving is not None,
            "loader": entry.loader is not None,
            "width": entry.width < 1.0,
            "availability.trace": entry.availability is not None and entry.availability.trace is not None,
            "ambient_c": entry.ambient_c != AMBIENT_C,
            "truth": BOARD_PLACE in entry.truth,
        }
        for key in (key for key, found in given.items() if found):
            yield f"fleet[{place}].{key}", "a value", "nothing"


def run_column_study(experiment: Experiment, steps: int | None) -> FleetRun:
    """Play an experiment, as prepared for the study, in columns.

    Args:
        experiment: The experiment; ``check_columns`` accepts it.
        steps: Steps of every board per round; None for about 30 s at MAXN.

    Raises:
        RunFailed: If no client will ever be available.
    """
    columns = build_fleet_columns(experiment, steps)
    state, rounds, explored = start_state(columns, experiment.seed), [], []
    for number in range(1, experiment.rounds + 1):
        begin_phase(f"round {number} of {experiment.rounds}")
        state, played = simulate_round(columns, experiment, state, number)
        rounds.append(compare_columns(columns, played, experiment.policy, number))
        explored.append(float(state.explored.sum() / max(1, np.count_nonzero(state.explored))))
    return FleetRun(experiment.policy.name, experiment.seed, tuple(rounds), tuple(explored), engine="columns")
