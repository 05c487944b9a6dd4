"""Small changes to a source text, each of which a good test should notice."""

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
UNTOUCHED_CALLS = {"kill", "killpg", "cast", "debug", "info", "warning", "exception", "getLogger", "TypeVar"}
"""What they get stays: a signal must not reach a process of others, and log lines are no behaviour."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.ExceptHandler, ast.With)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source.

    Attributes:
        text: The whole source, changed.
        change: What was changed, for a reader.
        lines: Lines whose run runs the change.
        is_import_time: Whether importing the module runs them too, as it does a constant's.
    """

    file: str
    line: int
    text: str
    change: str
    lines: frozenset[int]
    is_import_time: bool


@dataclass(frozen=True, slots=True)
class MutationSite:
    """A node with the texts that may stand in its place, and the statement and function that it stands in."""

    node: ast.expr | ast.stmt
    texts: tuple[str, ...]
    statement: ast.stmt
    function: ast.AST | None


def draw_mutants(sources: Mapping[str, str], count: int, random: Random) -> list[Mutant]:
    """Return at most ``count`` mutants of the files' sources, each of a place of its own."""
    trees = {file: ast.parse(source) for file, source in sources.items()}
    sites = [(file, site) for file, tree in trees.items() for site in find_sites(tree)]
    random.shuffle(sites)
    drawn = (build_mutant(file, sources[file], trees[file], site, random) for file, site in sites)
    return list(itertools.islice(filter(None, drawn), count))


def build_mutant(file: str, source: str, tree: ast.Module, site: MutationSite, random: Random) -> Mutant | None:
    """Return the source with the site changed; None where that is no Python, as in a pattern of ``match``."""
    node, data = site.node, source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    new, old = random.choice(site.texts), data[start:end].decode()
    text = (data[:start] + new.encode() + data[end:]).decode()
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    change = f"{' '.join(old.split())} -> {' '.join(new.split())}"
    lines, is_import_time = list_running_lines(tree, site)
    return Mutant(file, node.lineno, text, change, frozenset(lines), is_import_time)


def list_running_lines(tree: ast.Module, site: MutationSite) -> tuple[set[int], bool]:
    """Return the lines of the site; of a constant or default those that use it, and that importing runs it."""
    statement = site.statement
    if site.function is not None:
        return _list_lines(site.node if hasattr(statement, "body") else statement), False
    if isinstance(statement, FUNCTIONS):
        return set().union(*map(_list_lines, statement.body)), True
    names = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    uses = {one.lineno for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id in names}
    uses |= {one.lineno for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr in names}
    return uses - _list_lines(statement), True


def _list_lines(node: ast.expr | ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def find_sites(tree: ast.Module) -> Iterator[MutationSite]:
    for statement in tree.body:
        yield from _visit(statement, statement, None, in_branch=False)


def _visit(node: ast.AST, statement: ast.stmt, function: ast.AST | None, *, in_branch: bool) -> Iterator[MutationSite]:
    """Yield the sites at and below a node, without annotations, f-strings (they have no places) and docstrings."""
    if _is_untouched(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    texts = tuple(_replace_statement(node, in_branch) if isinstance(node, ast.stmt) else _replace_expression(node))
    if texts and (function is not None or isinstance(node, ast.expr)):
        yield MutationSite(node, texts, statement, function)  # type: ignore[arg-type]
    for field, child in ast.iter_fields(node):
        if field in {"annotation", "returns", "type_params"} or isinstance(node, ast.JoinedStr):
            continue
        inner = node if field == "body" and isinstance(node, FUNCTIONS) else function
        branch = field in {"body", "orelse", "finalbody", "handlers"} and isinstance(node, BRANCHES)
        for one in child if isinstance(child, list) else [child]:
            if isinstance(one, ast.AST):
                yield from _visit(one, statement, inner, in_branch=branch)


def _is_untouched(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in UNTOUCHED_CALLS


def _replace_statement(node: ast.stmt, in_branch: bool) -> Iterator[str]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_untouched(node.value)
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None"
    elif is_call or (in_branch and isinstance(node, ast.Assign | ast.AugAssign)):
        yield "pass"
    if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield ast.unparse(ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value))


def _replace_expression(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                operators = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                yield f"({ast.unparse(ast.Compare(node.left, operators, node.comparators))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.BoolOp):
        yield f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield from (f"({value!r})" for value in (node.value + 1, node.value - 1) if value != node.value)
