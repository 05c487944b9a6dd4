"""The commands are one set: an option has one name, one kind and one meaning, and every command shows an example."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from typer.main import get_command

from experiments.cli.main import app

HELP_WIDTH = 80
CHOICES = {"choice": "text"}
"""Kinds that count as another: a choice is a text that the parser checks."""


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the command of every command that is not a group."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, one in inner.items():
        yield from walk(one, (*words, name))


ROOT = get_command(app)
COMMANDS = dict(walk(ROOT))
NAMES = [" ".join(words) for words in COMMANDS]


def list_options(command: Any) -> Iterator[Any]:
    yield from (one for one in command.params if one.param_type_name == "option")


def kind(option: Any) -> str:
    name = option.type.name.removesuffix(" range")
    return "flag" if option.is_flag else CHOICES.get(name, name)


def meaning(option: Any) -> str:
    """The help up to its first detail."""
    return re.split(r"[;.(:,]", option.help)[0].strip()


def test_an_option_has_one_kind_and_one_meaning_in_all_commands():
    found: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for words, command in COMMANDS.items():
        for option in list_options(command):
            for name in option.opts:
                found[name][kind(option), meaning(option)].append(" ".join(words))

    assert {name: dict(uses) for name, uses in found.items() if len(uses) > 1} == {}


def test_json_and_dry_run_are_flags_and_out_is_a_file():
    options = [option for command in COMMANDS.values() for option in list_options(command)]
    kinds = {name: {kind(one) for one in options if name in one.opts} for name in ("--json", "--dry-run", "--out")}
    outs = {one.metavar for one in options if "--out" in one.opts}

    assert kinds == {"--json": {"flag"}, "--dry-run": {"flag"}, "--out": {"path"}}
    assert outs <= {"FILE", "TABLE", "MODEL"}


def test_an_argument_of_one_name_has_one_kind():
    found: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS.values():
        for one in command.params:
            if one.param_type_name == "argument":
                found[one.metavar.removesuffix("...")].add(one.type.name)

    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
    assert all(name.isupper() for name in found)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_help(name):
    assert [one.opts for one in list_options(COMMANDS[tuple(name.split())]) if not one.help] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_explained_in_the_help(name):
    done = CliRunner().invoke(ROOT, [*name.split(), "--help"], terminal_width=1000)
    listed = re.search(r"^Arguments:\n((?:  .+\n)+)", done.output, re.MULTILINE)
    lines = listed.group(1).splitlines() if listed else []

    assert len(lines) == sum(one.param_type_name == "argument" for one in COMMANDS[tuple(name.split())].params)
    assert [line for line in lines if re.fullmatch(r"  \S+ *(\[(default|required).*\])?", line)] == []
    assert "Positional" not in done.output


@pytest.mark.parametrize("name", NAMES)
def test_the_example_in_a_command_s_help_is_a_call_of_it(name):
    command = COMMANDS[tuple(name.split())]
    found = re.search(r"Example: fedge (.+?)(\n\n|$)", command.help or "", re.DOTALL)
    words = shlex.split(found.group(1))
    own = [word for word in name.split() if word != "NETWORK"]

    assert words[: len(own)] == own
    command.make_context(name, words[len(own) :]).close()


@pytest.mark.parametrize("name", ["", *NAMES])
def test_a_help_fits_80_columns_and_names_its_panels(name):
    done = CliRunner().invoke(ROOT, [*name.split(), "--help"], terminal_width=HELP_WIDTH)

    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= HELP_WIDTH
    assert "\nCommands:" not in done.output


@pytest.mark.parametrize("command", ROOT.commands.values(), ids=list(ROOT.commands))
def test_every_command_of_the_first_level_stands_under_a_heading(command):
    assert isinstance(command.rich_help_panel, str)
