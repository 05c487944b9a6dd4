"""Every parameter of a command reaches its record of options, or is named as no option of it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from experiments.cli.command_options import OUTPUTS, build_options
from experiments.cli.main import app


def list_commands(group: typer.Typer) -> Iterator[Callable[..., Any]]:
    for command in group.registered_commands:
        if command.callback is not None and "build_options" in command.callback.__code__.co_names:
            yield command.callback
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            yield from list_commands(inner.typer_instance)


COMMANDS = {f"{command.__module__}.{command.__name__}": command for command in list_commands(app)}


OTHER_IN_PYTHON = {"as_json", "overrides"}
"""Not of Python's functions, or keywords of their own: ``--json``, ``--set``."""


class Built(Exception):
    """Ends a command once its options are made."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_parameter_of_a_command_is_an_option_or_named_as_another(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = {parameter: Path(parameter) for parameter in inspect.signature(COMMANDS[name]).parameters}
    found: dict[str, Any] = {}

    def build_and_end(record: type[Any], parameters: dict[str, Any], **more: Any) -> None:
        options = build_options(record, parameters, **more)
        parts = [one for one in vars_of(options).values() if dataclasses.is_dataclass(one)]
        found.update({key: value for one in (options, *parts) for key, value in vars_of(one).items()})
        others = {*more.get("others", ()), *(OUTPUTS & given.keys() - found.keys())}
        found.update({other: given[other] for other in others})
        raise Built

    monkeypatch.setattr(sys.modules[COMMANDS[name].__module__], "build_options", build_and_end)
    with pytest.raises(Built):
        COMMANDS[name](**given)
    assert found.items() >= given.items()


def vars_of(record: Any) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in dataclasses.fields(record)}


@dataclass
class Options:
    needed: int | None
    names: tuple[str, ...] = field(default_factory=lambda: ("a",))
    part: Options | None = None


def test_what_was_not_given_leaves_the_default_of_a_value_or_a_factory():
    assert build_options(Options, {"needed": None, "names": None}) == Options(None)
    assert build_options(Options, {"needed": 1, "names": ["b"]}, part=Options).part == Options(1, ("b",))


@pytest.mark.parametrize(("parameters", "others"), [({"needed": 1, "nmaes": []}, ()), ({"needed": 1}, ("needed",))])
def test_a_parameter_that_no_record_takes_is_an_error_of_the_program(parameters, others):
    with pytest.raises(TypeError, match="must be a field or among the others"):
        build_options(Options, parameters, others=others)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_has_one_name_in_python_and_on_the_command_line(name):
    program = typer.Typer()
    program.command()(COMMANDS[name])
    for parameter in typer.main.get_command(program).params:
        spelt = parameter.opts[0].removeprefix("--").replace("-", "_")
        names = {spelt, f"{spelt}s"} if getattr(parameter, "multiple", False) else {spelt}
        if parameter.opts[0].startswith("--") and parameter.name not in OTHER_IN_PYTHON:
            assert parameter.name in names
