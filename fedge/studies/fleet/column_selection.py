"""Selection of a round's clients from columns: the selectors that need no losses or are told none by a study."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedge.decisions.selection.basic_selectors import round_randomly
from fedge.decisions.selection.oort import UNCERTAINTY, exploration_share
from fedge.decisions.selection.selector_options import complete_options
from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.experiment import Experiment
from fedge.seeds import make_generator
from fedge.studies.fleet.client_columns import ColumnState, FleetColumns, mask_available
from fedge.studies.fleet.work_choice import Rows
from fedge.types import Floats

COLUMN_SELECTORS = ("all", "random", "oort")
"""The selectors that exist for columns."""


def select_columns(
    experiment: Experiment,
    columns: FleetColumns,
    state: ColumnState,
    number: int,
) -> Rows:
    """Select the clients of round ``number`` among those that are available, ascending."""
    offered = np.flatnonzero(mask_available(columns, state))
    spec, rng = experiment.selection, make_generator(experiment.seed, number, "select", "columns")
    wanted = len(offered) if spec.count is None else math.ceil(spec.count * spec.over_commit - 1e-9)
    count = min(wanted, len(offered))
    if spec.name == "all" or count == len(offered):
        return offered[:count]
    if spec.name == "random":
        return np.sort(rng.choice(offered, count, replace=False, shuffle=False))
    pairs = zip(columns.kinds, state.knowledge, strict=True)
    fastest_s = [float(known.fitted.step_s[kind.to_candidate(kind.top)]) for kind, known in pairs]
    expected_s = columns.link_s[columns.entry[offered]] + (
        (columns.steps[offered] + WARM_UP_STEPS) * columns.gather(fastest_s, offered)
    )
    seconds = np.where(state.last_round[offered] > 0, state.busy_s[offered], expected_s)
    options = complete_options("oort", spec.options)
    return np.sort(
        offered[select_oort_rows(seconds, state.last_round[offered], rng, number=number, count=count, options=options)]
    )


def select_oort_rows(
    seconds: Floats,
    last_round: Rows,
    rng: np.random.Generator,
    *,
    number: int,
    count: int,
    options: Mapping[str, float],
) -> Rows:
    """Select rows as ``select_oort`` does where nobody reports a loss: by speed, and by how long ago they took part.

    Without losses the statistical utility of all clients is equal, and the pacer stays where it begins.

    Args:
        seconds: Duration of each client's last round, or the one expected, shape (n,).
        last_round: Round in which it took part last; 0 for never, shape (n,).
        rng: Source of randomness.
        number: The round.
        count: Number of clients to select, at most n.
        options: The selector's options, complete.
    """
    known, unknown = np.flatnonzero(last_round > 0), np.flatnonzero(last_round == 0)
    wanted = round_randomly(count * exploration_share(number, options), rng)
    exploring = min(len(unknown), max(wanted, count - len(known)))
    taken = unknown[_draw_weighted(1.0 / seconds[unknown], exploring, rng)]
    left = count - exploring
    if left == 0:
        return taken
    preferred_s = np.percentile(seconds, options["preferred_percentile"])
    utility = 1.0 + np.sqrt(UNCERTAINTY * math.log(max(1, number)) / last_round[known])
    utility *= np.minimum(1.0, preferred_s / seconds[known]) ** options["slow_penalty"]
    threshold = options["cut_off"] * np.partition(utility, len(utility) - left)[len(utility) - left]
    admitted = np.flatnonzero(utility >= threshold)
    return np.concatenate([taken, known[admitted[_draw_weighted(utility[admitted], left, rng)]]])


def _draw_weighted(weights: Floats, size: int, rng: np.random.Generator) -> Rows:
    """Draw rows in proportion to positive weights as ``sample_without_replacement`` does, in no order: O(n)."""
    arrival = rng.exponential(size=len(weights)) / weights
    return np.argpartition(arrival, size - 1)[:size] if 0 < size < len(arrival) else np.arange(len(arrival))[:size]
