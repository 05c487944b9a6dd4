"""What is believed of clients whose figures are missing or make no sense."""

from __future__ import annotations

import dataclasses
import math

import pytest
from contracts.selector import a_front, fleet

from fedge.decisions.selection.client_figures import (
    clamp_count,
    estimate_duration_s,
    estimate_durations_s,
    estimate_samples,
    valid_front,
    valid_loss,
)
from fedge.types import ClientStatus


def test_an_unknown_number_of_samples_is_the_usual_one():
    told = [
        ClientStatus("a", samples=10),
        ClientStatus("b"),
        ClientStatus("c", samples=30),
        ClientStatus("d", samples=20),
    ]

    assert estimate_samples(told).tolist() == [10.0, 20.0, 30.0, 20.0]
    assert estimate_samples(fleet(2)).tolist() == [1.0, 1.0]
    assert estimate_samples([ClientStatus("a", samples=0)]).tolist() == [1.0]


def test_a_duration_is_what_was_seen_and_before_that_what_the_front_expects_at_maxn():
    assert estimate_duration_s(ClientStatus("a", front=a_front(10.0, link_s=2.0))) == 12.0
    assert estimate_duration_s(ClientStatus("a", front=a_front(10.0), busy_s=7.0)) == 7.0
    assert estimate_duration_s(ClientStatus("a", front=a_front(10.0, link_s=0.0), busy_s=math.nan)) == 10.0
    assert estimate_duration_s(ClientStatus("a")) is None
    assert estimate_durations_s([ClientStatus("a", busy_s=4.0), ClientStatus("b")]).tolist() == [4.0, 4.0]


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_loss_that_is_no_number_is_unknown(loss):
    assert valid_loss(ClientStatus("a", loss=loss)) is None


def test_a_front_with_a_figure_that_cannot_be_is_none():
    good = a_front()
    bad = dataclasses.replace(good.points[1], work_s=math.nan)

    assert valid_front(ClientStatus("a", front=good)) is good
    assert valid_front(ClientStatus("a", front=dataclasses.replace(good, points=(good.points[0], bad)))) is None
    assert valid_front(ClientStatus("a", front=dataclasses.replace(good, idle_w=-1.0))) is None
    assert valid_front(ClientStatus("a")) is None


def test_the_seats_are_the_count_but_no_more_than_the_clients_and_one_at_least():
    assert [clamp_count(count, fleet(3)) for count in (-1, 0, 2, 9)] == [1, 1, 2, 3]
    assert clamp_count(2, []) == 0
