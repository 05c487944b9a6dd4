"""A name becomes an object, or one clear error."""

import math

import pytest

from fedge import registry
from fedge.errors import BadInput, UnknownName


def test_a_known_name_is_loaded():
    assert registry.load_named("policy", "root", {"root": "math:sqrt"}) is math.sqrt


def test_the_users_own_module_and_attribute_are_loaded():
    assert registry.load_named("policy", "math:sqrt", {}) is math.sqrt


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"policy: got 'nope'; known: a, b, your own module:NAME"):
        registry.load_named("policy", "nope", {"b": "x:y", "a": "x:y"})


@pytest.mark.parametrize("name", ["no_such_module:Thing", "math:no_such_thing"])
def test_a_module_that_cannot_be_loaded_is_bad_input(name):
    with pytest.raises(BadInput, match="an importable module:NAME"):
        registry.load_named("policy", name, {})
