"""``fedge new``: files of a plug-in of one's own, with the test of its contract."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from experiments.cli.command_output import print_line
from fedge.atomic_files import write_text
from fedge.errors import BadInput

TEMPLATES = "experiments.plugin_templates"
FILES = {
    "policy": ("own_policy.py", "test_own_policy.py"),
    "selection": ("own_selection.py", "test_own_selection.py"),
    "predictor": ("own_predictor.py", "test_own_predictor.py"),
    "task": ("own_task.py", "test_own_task.py"),
    "board": ("own_board.yaml", "test_own_board.py"),
}
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]*")


def new(
    kind: Annotated[
        Literal["policy", "selection", "predictor", "task", "board"],
        typer.Argument(metavar="KIND", help="policy, selection, predictor, task or board."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the file: lower case, digits, underscores.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")] = Path(),
) -> None:
    """Write a plug-in of your own that works, and the test of its contract.

    An existing file is never overwritten.

    Example: fedge new policy coolest
    """
    if PLUGIN_NAME.fullmatch(name) is None or name.startswith("test_"):
        right = "lower case, digits and underscores, such as my_policy, and no test_ in front"
        raise BadInput("NAME", repr(name), right)
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        got = f"{name!r}, a {'keyword' if keyword.iskeyword(name) else 'standard module'} of Python"
        raise BadInput("NAME", got, f"a name of its own, such as my_{name}")
    texts = {folder / one.replace(f"own_{kind}", name): read_template(kind, one, name) for one in FILES[kind]}
    for path in texts:
        if path.exists():
            raise BadInput(str(path), "a file that exists", "another NAME, or another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text)
        print_line(str(path))
    # In a project with --import-mode=importlib a test would not find the file beside it.
    print_line(f"test it: pytest --import-mode=prepend {list(texts)[1]}")


def read_template(kind: str, file: str, name: str) -> str:
    """Return the text of a template for a plug-in called ``name``; its class and a board's own name follow from it."""
    text = (resources.files(TEMPLATES) / file).read_text(encoding="utf-8")
    titled = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace(f"own_{kind}", name).replace(f"own-{kind}", name.replace("_", "-"))
    return text.replace(f"Own{kind.capitalize()}", titled)
