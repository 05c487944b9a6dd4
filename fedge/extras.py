"""Which extra of the package brings which library, and the line that names the missing ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from fedge.errors import FedgeError

LIBRARIES = {
    "ansible_runner": ("ansible-runner", "fleet"),
    "cryptography": ("cryptography", "fleet"),
    "duckdb": ("DuckDB", "report"),
    "fastapi": ("FastAPI", "report"),
    "flwr": ("Flower", "sim"),
    "jinja2": ("Jinja", "report"),
    "jtop": ("jetson-stats", "jetson"),
    "mlflow": ("MLflow", "mlflow"),
    "onnx": ("ONNX", "onnx"),
    "onnxruntime": ("ONNX Runtime", "onnx"),
    "optuna": ("Optuna", "optuna"),
    "pandas": ("pandas", "pandas"),
    "peft": ("PEFT", "llm"),
    "plotly": ("Plotly", "report"),
    "prometheus_client": ("prometheus-client", "report"),
    "pyarrow": ("PyArrow", "report"),
    "pynvml": ("nvidia-ml-py", "gpu"),
    "ray": ("Ray", "sim"),
    "scipy": ("SciPy", "train"),
    "sklearn": ("scikit-learn", "train"),
    "starlette": ("Starlette", "report"),
    "tensorboard": ("TensorBoard", "tensorboard"),
    "torch": ("PyTorch", "train"),
    "torch_pruning": ("torch-pruning", "pruning"),
    "torchvision": ("torchvision", "train"),
    "transformers": ("transformers", "llm"),
    "uvicorn": ("Uvicorn", "report"),
}
"""Module -> the library's own name and the extra in pyproject.toml. Everything else is part of the core."""


class MissingPackage(FedgeError):
    """A library that a command needs and that only an extra brings."""


def build_install_command(*extras: str) -> str:
    """Return the command that adds extras to an environment that has fedge: pip takes them from the installed one."""
    return f"pip install 'fedge[{','.join(sorted(set(extras)))}]'"


def describe_missing(what: str, *modules: str) -> str:
    """Return the line that says what ``what`` (a command) needs and how to install it."""
    names, extras = zip(*(LIBRARIES[module] for module in modules), strict=True)
    needed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{what} needs {needed}: {build_install_command(*extras)}"


def require_modules(what: str, *modules: str) -> None:
    """Check that libraries are installed, without importing them.

    Raises:
        MissingPackage: If one is not; the message names all that are missing.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingPackage(describe_missing(what, *missing))


@contextmanager
def name_missing(what: str) -> Iterator[None]:
    """Tell in one line what ``what`` needs if an import inside the block fails for lack of an extra.

    Raises:
        MissingPackage: Instead of the ``ModuleNotFoundError``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in LIBRARIES:
            raise
        raise MissingPackage(describe_missing(what, module)) from None
