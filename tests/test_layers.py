"""The architecture, enforced: imports go down, heavy libraries stay where they belong, functions are short."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedge", "clients", "server", "experiments")

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "fedge.types",
        "fedge.errors",
        "fedge.extras",
        "fedge.atomic_files",
        "fedge.call_cache",
        "fedge.garbage_collection",
        "fedge.groups",
        "fedge.json_reader",
        "fedge.network_addresses",
        "fedge.strict_json",
        "fedge.phases",
        "fedge.jsonlines",
        "fedge.import_path",
        "fedge.child_processes",
        "fedge.yaml_files",
        "fedge.user_catalogue",
        "fedge.clock",
        "fedge",
    ),
    ("fedge.seeds", "fedge.experiment", "fedge.modes", "fedge.pareto", "fedge.confidence_interval"),
    ("fedge.protocols",),
    ("fedge.registry", "fedge.wire"),
    ("fedge.physics",),
    ("fedge.costs",),
    ("fedge.decisions",),
    ("fedge.predictors",),
    ("fedge.workloads",),
    ("fedge.devices",),
    ("fedge.analysis",),
    ("fedge.serving",),
    ("fedge.knowledge",),
    ("fedge.telemetry",),
    ("fedge.client",),
    ("fedge.characterisation",),
    ("fedge.studies",),
    ("fedge.flower",),
    ("clients", "server"),
    ("experiments",),
)
"""From the bottom up. ``fedge`` itself stands for the package's own ``__init__``."""

UPWARD_BY_NAME = {"fedge": {"experiments", "experiments.api"}}
"""The one exception: ``import fedge`` offers the functions of ``experiments.api``, by name at their first use."""

PROGRAMS_LAYER = 18
"""The two programs do not know each other."""

STANDALONE = ("fedge.worker", "fedge.powerd")
"""Run by the board's own Python; they import nothing of fedge."""

EMULATOR = ("fedge.devices.emulated_board", "fedge.devices.mode_surface", "fedge.devices.board_kinds")
"""Beside ``fedge.client.emulated*``: what pretends to be boards, of which the server knows nothing."""

HOMES: dict[str, tuple[str, ...]] = {
    "flwr": ("clients", "server", "experiments", "fedge.flower"),
    "ray": ("server", "experiments", "fedge.studies.ray_session", "fedge.studies.task_pool"),
    "torch": (
        "fedge.workloads",
        "fedge.worker",
        "fedge.costs.layers.torch_trace",
        "fedge.costs.layers.saved_activations",
        "fedge.costs.memory.optimizer_state",
        "fedge.costs.layers.network_source",
        "fedge.analysis.roofline.layer_benchmark",
        "fedge.analysis.roofline.microbenchmark",
        "fedge.analysis.topology",
        "fedge.analysis.placement.inference_jobs",
        "fedge.flower.step_gate",
        "experiments.plugin_templates",
        "experiments.configs",
    ),
    "scipy": ("fedge.decisions.selection.fedjoule",),
    "sklearn": ("fedge.workloads", "fedge.predictors.forest", "fedge.costs.memory.memory_study", "experiments"),
    "torchvision": ("fedge.workloads", "fedge.worker", "fedge.costs.layers.network_source"),
    "torch_pruning": ("fedge.analysis.topology",),
    "onnx": ("fedge.costs.layers.onnx_graph", "fedge.analysis.placement.inference_jobs"),
    "onnxruntime": ("fedge.analysis.placement.inference_jobs",),
    "tensorrt": ("fedge.analysis.placement.inference_jobs",),
    "pyarrow": ("fedge.telemetry", "fedge.devices.tables", "fedge.characterisation.sweep_store", "experiments"),
    "duckdb": ("fedge.telemetry",),
    "pandas": ("fedge.telemetry",),
    "plotly": ("server", "experiments"),
    "jinja2": ("experiments",),
    "markupsafe": ("experiments",),
    "prometheus_client": ("server",),
    "fastapi": ("server",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "tensorboard": ("server.exporters",),
    "mlflow": ("server.exporters",),
    "cryptography": ("experiments",),
    "ansible_runner": ("experiments",),
    "jtop": ("fedge.devices.sensing.jtop_sensor",),
    "pynvml": ("fedge.devices.sensing.energy_counters",),
    "optuna": ("experiments",),
    "typer": ("experiments",),
    "rich": ("experiments",),
}
"""The only parts that may import a library, at the top of a file or inside a function."""

HEAVY = (
    "torch",
    "torchvision",
    "flwr",
    "ray",
    "pyarrow",
    "plotly",
    "scipy",
    "sklearn",
    "onnx",
    "onnxruntime",
    "torch_pruning",
    "duckdb",
    "pandas",
    "fastapi",
    "uvicorn",
    "optuna",
)
LONGEST_FUNCTION_LINES = 50


@dataclass(frozen=True, slots=True)
class Import:
    """One import of ``target`` (a dotted module) by ``module``, at ``line`` of its file."""

    module: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def _absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def imports_of(module: str, source: str, is_package: bool = False) -> list[Import]:
    """List what a source file imports, under TYPE_CHECKING too; ``from a import b`` counts as ``a.b``."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(module, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, is_package, node)
            found += [Import(module, f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _inside(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def part_of(module: str) -> tuple[int, str] | None:
    """The layer and the part of it that a module belongs to; None for a library and for what stands alone."""
    for layer, parts in enumerate(LAYERS):
        for part in parts:
            if part != "fedge" and _inside(module, part):
                return layer, part
    if _inside(module, "fedge") and module.count(".") <= 1 and not module.startswith(STANDALONE):
        return 0, "fedge"  # a name out of fedge/__init__.py, such as fedge.__version__
    return None


def wrong_way(found: Import) -> str | None:
    """Why an import breaks the layers; None when it does not."""
    if _inside(found.module, "fedge.worker") or _inside(found.module, "fedge.powerd"):
        own = ".".join(found.module.split(".")[:2])
        strays = _inside(found.target, "fedge") and not _inside(found.target, own)
        return "a stand-alone part imports nothing of fedge" if strays else None
    here, there = part_of(found.module), part_of(found.target)
    if here is None or there is None:
        return None
    if there[0] > here[0]:
        return "imports go down only"
    if there[0] == here[0] and there[1] != here[1] and here[0] == PROGRAMS_LAYER:
        return "these two do not know each other"
    if there[1] in {"clients", "server"} and here[1] == "experiments":
        return (
            None if _inside(found.module, "experiments.backends") else "only experiments.backends imports the programs"
        )
    return None


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _sources() -> tuple[Path, ...]:
    return tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


@cache
def _all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for path in _sources()
        for found in imports_of(_module_name(path), path.read_text(encoding="utf-8"), path.name == "__init__.py")
    )


def test_imports_go_down_the_layers_only():
    broken = [f"{found}: {why}" for found in _all_imports() if (why := wrong_way(found))]
    assert not broken, "\n".join(broken)


def test_every_module_has_a_place_in_the_layers():
    modules = {_module_name(path) for path in _sources()}
    homeless = sorted(m for m in modules if part_of(m) in {None, (0, "fedge")} and m != "fedge")
    assert not [m for m in homeless if not any(_inside(m, alone) for alone in STANDALONE)]


def is_emulator_import(found: Import) -> bool:
    """Whether the server imports a part of the emulator."""
    emulated = any(_inside(found.target, part) for part in EMULATOR) or found.target.startswith("fedge.client.emulated")
    return _inside(found.module, "server") and emulated


def test_the_server_imports_nothing_of_the_emulator():
    strays = [str(found) for found in _all_imports() if is_emulator_import(found)]
    assert not strays, "\n".join(strays)


def test_an_import_of_the_emulator_is_seen():
    source = "if TYPE_CHECKING:\n    from fedge.client import emulated\ndef f():\n    import fedge.devices.board_kinds"
    assert [is_emulator_import(found) for found in imports_of("server.app", source)] == [True, True]


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_is_imported_only_where_it_belongs(library):
    strays = [
        str(found)
        for found in _all_imports()
        if _inside(found.target, library) and not any(_inside(found.module, home) for home in HOMES[library])
    ]
    assert not strays, "\n".join(strays)


def test_only_the_functions_of_fedge_are_imported_upwards_by_name():
    found: dict[str, set[str]] = {}
    for path in (ROOT / "fedge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) and node.args else ""
            if called in {"import_module", "load_package"} and isinstance(node.args[0], ast.Constant):
                name, module = str(node.args[0].value), _module_name(path)
                if name.partition(".")[0] in PACKAGES[1:]:
                    found.setdefault(module, set()).add(name)
    assert found == UPWARD_BY_NAME


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("fedge.types", "from fedge.protocols import Device", "imports go down only"),
        ("fedge.decisions.policies.mode_policies", "from fedge.predictors import forest", "imports go down only"),
        ("fedge.costs.cost_scaling", "def f():\n    import fedge.devices.catalogue", "imports go down only"),
        ("fedge.physics", "if TYPE_CHECKING:\n    from fedge.costs import rates", "imports go down only"),
        ("clients.app", "from server.app import app", "these two do not know each other"),
        ("experiments.cli.main", "import server.app", "only experiments.backends imports the programs"),
        ("fedge.powerd.daemon", "from fedge.errors import BadInput", "a stand-alone part imports nothing of fedge"),
        ("fedge.client", "from experiments import cli", "imports go down only"),
        ("fedge.devices", "from .. import client", "imports go down only"),
    ],
)
def test_the_layer_rule_sees_an_import_that_breaks_it(module, source, reason):
    reasons = [wrong_way(found) for found in imports_of(module, source, is_package="." not in module[6:])]
    assert reasons == [reason]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fedge.decisions.policies.mode_policies", "from fedge.decisions.policies import power_cap"),
        ("experiments.backends.local_backend", "from server.app import app"),
        ("fedge.devices.real", "from fedge.powerd import client"),
        ("fedge.powerd.daemon", "from fedge.powerd import limits"),
        ("server.app", "from fedge import __version__, client"),
    ],
)
def test_the_layer_rule_allows_an_import_that_goes_down(module, source):
    assert [wrong_way(found) for found in imports_of(module, source) if wrong_way(found)] == []


def test_the_command_line_starts_without_heavy_libraries():
    if not (ROOT / "experiments" / "cli" / "main.py").exists():
        pytest.skip("experiments/cli/main.py does not exist")
    program = f"import sys, experiments.cli.main; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The length of a function from its signature to its end, without its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def test_no_function_is_longer_than_fifty_lines():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {_lines(node)} lines"
        for path in _sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > LONGEST_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_every_file_says_its_one_idea_in_its_first_line():
    silent = [
        str(path.relative_to(ROOT))
        for path in _sources()
        if path.stat().st_size and not (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").strip()
    ]
    assert not silent, "\n".join(silent)
