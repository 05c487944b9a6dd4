"""A search is played by measuring what it asks for, each trial once."""

from __future__ import annotations

import math

from contracts.jobs import pair

from fedge.concurrency.outcome import Choice
from fedge.concurrency.trial import Found, Search, Seen, Trial, on_table, play, try_one


def seen_of(trial: Trial) -> Seen:
    return Seen(float(trial.row), 0.0, 0.0, 0.0)


def test_what_is_asked_again_is_told_from_memory_and_counted_once() -> None:
    measured = []

    def search() -> Search:
        first = yield (Trial(3), Trial(1), Trial(3))
        assert [seen.train_s for seen in first] == [3.0, 1.0, 3.0]
        again = yield from try_one(Trial(1))
        assert again.train_s == 1.0
        yield ()
        return Choice(1)

    found = play(search(), lambda trial: measured.append(trial) or seen_of(trial))

    assert found == Found(Choice(1), (Trial(3), Trial(1)))
    assert measured == [Trial(3), Trial(1)]


def test_a_search_may_answer_without_a_trial() -> None:
    def search() -> Search:
        return None
        yield ()

    assert play(search(), seen_of) == Found(None, ())


def test_a_table_says_nothing_of_a_job_that_there_is_none_of() -> None:
    both, alone, served = pair(), pair(infers=False), pair(trains=False)

    seen = on_table(both)(Trial(5, 2))
    assert (seen.train_s, seen.infer_w) == (both.train_s[5], both.infer_w[2, 5])
    assert math.isnan(on_table(alone)(Trial(5)).infer_s)
    assert on_table(alone)(Trial(5)).power_w == alone.train_w[5]
    assert math.isnan(on_table(served)(Trial(5, 0)).train_w)
