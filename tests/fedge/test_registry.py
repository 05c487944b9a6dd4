"""A name becomes an object, or one clear error."""

import math
import sys

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


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages whose import is an error."""
    for place in ("loud_package/inner/module.py", "no_file/inner/module.py"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("raise AssertionError('imported')", encoding="utf-8")
    for folder in ("loud_package", "loud_package/inner"):
        (tmp_path / folder / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    "module", ["loud_package", "loud_package.inner", "loud_package.inner.module", "no_file.inner.module", "json.tool"]
)
def test_an_own_name_is_checked_without_an_import_of_its_module_or_packages(module, packages):
    before = set(sys.modules)

    registry.check_own_name("policy", f"{module}:Thing")

    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "module", ["nothing", "loud_package.nothing", "no_file.nothing", "nothing.inner", "math.pi", ".relative", "a..b"]
)
def test_an_own_name_of_no_module_is_refused(module, packages):
    with pytest.raises(BadInput, match=r"importable module:NAME \(No module named"):
        registry.check_own_name("policy", f"{module}:Thing")
