"""A dealt profile has no trial twice, every mode once before one comes again, and even shares of the batch sizes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.strategies.initial_trials import deal_trials, stack_readings
from fedge.serving.trial_search import TrialReading


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 300), st.integers(0, 99))
def test_trials_are_dealt_evenly_and_never_twice(modes: int, batches: int, count: int, seed: int) -> None:
    trials = deal_trials(modes, batches, count, np.random.default_rng(seed))

    assert len(set(trials)) == len(trials) == min(count, modes * max(batches, 1))
    assert all(trial.row in range(modes) for trial in trials)
    assert {trial.row for trial in trials[:modes]} == {trial.row for trial in trials}
    assert {trial.batch for trial in trials} <= ({*range(batches)} or {None})
    if batches and trials and modes % batches == 0:
        shares = Counter(trial.batch for trial in trials)
        assert max(shares.values()) - min(shares[place] for place in range(batches)) <= 1


def test_readings_become_columns() -> None:
    assert stack_readings([TrialReading(1.0, 2.0, 3.0, 4.0)]).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert stack_readings([]).shape == (0, 4)
