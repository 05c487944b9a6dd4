"""The selectors' options: every selector has a list, defaults lie in range, and wrong ones are named."""

from __future__ import annotations

import pytest

from fedge.decisions.selection import SELECTORS, load_selector
from fedge.decisions.selection.selector_options import SELECTOR_OPTIONS, check_options, complete_options
from fedge.errors import BadInput, UnknownName


def test_every_selector_has_a_list_of_options_and_can_be_loaded():
    assert list(SELECTOR_OPTIONS) == list(SELECTORS)
    assert all(callable(load_selector(name)) for name in SELECTORS)


def test_every_default_is_allowed():
    wrong = [
        (selector, name)
        for selector, options in SELECTOR_OPTIONS.items()
        for name, option in options.items()
        if option.default is not None and not option.allows(option.default)
    ]
    assert wrong == []


def test_what_is_given_replaces_the_default_and_an_option_without_one_stays_away():
    assert complete_options("tifl", {"tiers": 3.0}) == {"tiers": 3.0, "credits": 20, "interval": 10}
    assert complete_options("power-of-choice", {}) == {}


@pytest.mark.parametrize(
    ("selector", "given", "message"),
    [
        ("random", {"tiers": 2.0}, "selection.options.tiers: got 2; random takes no options"),
        (
            "tifl",
            {"tier": 2.0},
            "selection.options.tier: got 2; did you mean tiers? tifl takes tiers, credits, interval",
        ),
        ("tifl", {"tiers": 2.5}, "selection.options.tiers: got 2.5; a whole number of at least 1"),
        ("tifl", {"credits": float("inf")}, "selection.options.credits: got inf; a whole number of at least 1"),
        ("oort", {"cut_off": 1.5}, "selection.options.cut_off: got 1.5; a number from 0 to 1"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(selector, given, message):
    with pytest.raises(BadInput) as raised:
        check_options(selector, given)
    assert str(raised.value) == message


def test_the_users_own_selector_takes_what_it_likes():
    check_options("mine:selector", {"anything": 1.0})


def test_an_unknown_selector_is_named_with_the_known_ones():
    with pytest.raises(UnknownName, match=r"selection.name: got 'best'; known: all, energy-aware, "):
        load_selector("best")
