"""Counts that say how easy the code base is to live in, with the values reached as ceilings: they may only fall."""

from __future__ import annotations

import ast
import collections
import graphlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fedge", "clients", "server", "experiments", "ansible", "benchmarks")
PREPOSITIONS = frozenset({
    "told", "heard", "seen", "held", "kept", "known", "shown", "taken", "said", "learnt", "begun", "lost", "left",
    "stood", "spent", "drawn", "chosen", "found", "gone", "written", "made", "put", "set",
    "beside", "at", "of", "between", "within", "beyond", "after", "before",
})  # fmt: skip
NO_PARTICIPLES = frozenset({
    "red", "bed", "seed", "embed", "speed", "feed", "need", "shed", "speedup", "breed", "set", "put", "left",
})  # fmt: skip
SECTIONS = re.compile(r"^\s*(Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)
BUILTIN_CALLS = frozenset({
    "stack", "concatenate", "max", "min", "zip", "print", "chain", "join", "Path", "array",
})  # fmt: skip
"""Callables whose positional arguments are one list of like things."""

MAX_PACKAGES = 16
MAX_ING_MODULES = 14
MAX_BARE_FUNCTION_NAMES = 18
MAX_CLASS_NAMES_IN_SEVERAL_FILES = 0
MAX_MODULE_NAMES_IN_SEVERAL_PACKAGES = 2
MAX_CALLS_OVER_FOUR_POSITIONAL = 49
MAX_SMALL_FILES = 24
MAX_WHAT_DOCSTRINGS = 12
MIN_DOCSTRINGS_WITH_SECTIONS = 1000


@cache
def _trees() -> dict[str, ast.Module]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _nodes(*kinds: type[ast.AST]) -> list[tuple[str, ast.AST]]:
    return [(name, node) for name, tree in _trees().items() for node in ast.walk(tree) if isinstance(node, kinds)]


def is_bare(name: str) -> bool:
    """Whether a function's name is a participle or a preposition alone."""
    word = name.strip("_")
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return word in PREPOSITIONS or re.fullmatch(r"[a-z]{2,}ed", word) is not None


def is_program_start(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def imports_between(sources: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Which file imports which, also inside functions and under TYPE_CHECKING."""
    modules = {name[:-3].replace("/", ".").removesuffix(".__init__"): name for name in sources}
    graph: dict[str, set[str]] = {}
    for name, tree in sources.items():
        targets: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {one if one in modules else node.module for one in full}
        graph[name] = {modules[target] for target in targets if target in modules} - {name}
    return graph


def _assert_at_most(limit: int, found: list[str]) -> None:
    assert len(found) <= limit, f"{len(found)} where {limit} are allowed:\n" + "\n".join(found)


def test_no_file_imports_itself_through_others():
    try:
        graphlib.TopologicalSorter(imports_between(_trees())).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_a_circle_is_seen():
    sources = {"fedge/a.py": ast.parse("import fedge.b"), "fedge/b.py": ast.parse("def f():\n    from fedge import a")}
    assert imports_between(sources) == {"fedge/a.py": {"fedge/b.py"}, "fedge/b.py": {"fedge/a.py"}}


def test_packages_of_fedge_are_few():
    _assert_at_most(
        MAX_PACKAGES, sorted({n.split("/")[1] for n in _trees() if n.startswith("fedge/") and n.count("/") > 1})
    )


def test_modules_are_named_by_nouns():
    _assert_at_most(MAX_ING_MODULES, [name for name in _trees() if name.endswith("ing.py")])


def test_functions_are_named_by_what_they_do():
    functions = _nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    _assert_at_most(MAX_BARE_FUNCTION_NAMES, [f"{at}: {f.name}" for at, f in functions if is_bare(f.name)])


def test_a_bare_participle_is_seen():
    assert [is_bare(name) for name in ("told", "_played", "beside", "seed", "load_told", "run_round")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_class_name_stands_in_one_file():
    files = collections.defaultdict(set)
    for at, node in _nodes(ast.ClassDef):
        if not node.name.startswith("_"):
            files[node.name].add(at)
    _assert_at_most(
        MAX_CLASS_NAMES_IN_SEVERAL_FILES, [f"{name}: {where}" for name, where in files.items() if len(where) > 1]
    )


def test_a_module_name_stands_in_one_package():
    stems = collections.Counter(Path(name).stem for name in _trees())
    twice = [stem for stem, count in stems.items() if count > 1 and not stem.startswith("__")]
    _assert_at_most(MAX_MODULE_NAMES_IN_SEVERAL_PACKAGES, twice)


def test_calls_name_their_arguments():
    calls = [
        f"{at}:{node.lineno}"
        for at, node in _nodes(ast.Call)
        if sum(not isinstance(argument, ast.Starred) for argument in node.args) > 4
        and getattr(node.func, "attr", getattr(node.func, "id", "")) not in BUILTIN_CALLS
    ]
    _assert_at_most(MAX_CALLS_OVER_FOUR_POSITIONAL, calls)


def test_files_are_more_than_a_function():
    small = [
        name for name in _trees()
        if len((ROOT / name).read_text(encoding="utf-8").splitlines()) < 40 and not Path(name).stem.startswith("__")
    ]  # fmt: skip
    _assert_at_most(MAX_SMALL_FILES, small)


def test_docstrings_have_a_summary_line_and_sections():
    documented = _nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [(f"{at}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or "") for at, node in documented]
    _assert_at_most(MAX_WHAT_DOCSTRINGS, [at for at, text in texts if text.startswith("What ")])
    assert sum(SECTIONS.search(text) is not None for _, text in texts) >= MIN_DOCSTRINGS_WITH_SECTIONS


def test_a_program_starts_below_everything_that_it_needs():
    early = [name for name, tree in _trees().items() if any(map(is_program_start, tree.body[:-1]))]

    assert early == [], "what stands below `if __name__ == ...` is not defined yet when the program runs"
