"""A search is played by measuring what it asks for, each trial once."""

from __future__ import annotations

import math

from contracts.jobs import pair

from fedge.serving.job_choice import JobChoice
from fedge.serving.trial_search import (
    Trial,
    TrialReading,
    TrialSearch,
    TrialSearchResult,
    measure_from_table,
    request_trial,
    run_search,
)


def seen_of(trial: Trial) -> TrialReading:
    return TrialReading(float(trial.row), 0.0, 0.0, 0.0)


def test_what_is_asked_again_is_told_from_memory_and_counted_once() -> None:
    measured = []

    def search() -> TrialSearch:
        first = yield (Trial(3), Trial(1), Trial(3))
        assert [seen.train_s for seen in first] == [3.0, 1.0, 3.0]
        again = yield from request_trial(Trial(1))
        assert again.train_s == 1.0
        yield ()
        return JobChoice(1)

    found = run_search(search(), lambda trial: measured.append(trial) or seen_of(trial))

    assert found == TrialSearchResult(JobChoice(1), (Trial(3), Trial(1)))
    assert measured == [Trial(3), Trial(1)]


def test_a_search_may_answer_without_a_trial() -> None:
    def search() -> TrialSearch:
        return None
        yield ()

    assert run_search(search(), seen_of) == TrialSearchResult(None, ())


def test_a_table_says_nothing_of_a_job_that_there_is_none_of() -> None:
    both, alone, served = pair(), pair(infers=False), pair(trains=False)

    seen = measure_from_table(both)(Trial(5, 2))
    assert (seen.train_s, seen.infer_w) == (both.train_s[5], both.infer_w[2, 5])
    assert math.isnan(measure_from_table(alone)(Trial(5)).infer_s)
    assert measure_from_table(alone)(Trial(5)).power_w == alone.train_w[5]
    assert math.isnan(measure_from_table(served)(Trial(5, 0)).train_w)
