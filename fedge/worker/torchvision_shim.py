"""Import torchvision quickly, and even if its compiled part does not fit the installed torch.

A torchvision built for CUDA beside a torch without it (or the other way round) cannot load its compiled operators, and
then ``import torchvision`` fails: it registers the shapes of ``torchvision::nms`` and ``torchvision::qnms`` with torch,
which knows no such operators. Declaring the two is enough, because models and data sets never call them; code that
does call them still gets torchvision's own error. Nothing is declared where the compiled part loads, nor with a torch
before 1.12, which cannot be extended this way and whose torchvision registers none.

Recent releases (such as 0.28) also import torch's compiler, which takes longer than torch itself, for one function
that only ``roi_align`` calls. Here the compiler is imported at that call.
"""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Iterator

import torch

from fedge.worker.task_shape import BadTask

__all__ = ["datasets", "models", "require_function"]

_DECLARED_ALWAYS = ("nms", "qnms")
"""Operators that torchvision registers with torch whether or not its compiled part was loaded."""

_COMPILER = "torch._dynamo.utils"


def require_function(module: Any, name: str) -> Any:
    """Return the function ``name`` of a torchvision module.

    Raises:
        BadTask: This release of torchvision does not have it.
    """
    import torchvision

    if not hasattr(module, name):
        got = f"no {name} in torchvision {torchvision.__version__}"
        raise BadTask("torchvision", got, "a newer torchvision (with its torch), or another network")
    return getattr(module, name)


def _has_loadable_operators() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True  # there is nothing to mend: the import below says what is missing
    for library in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return True
    return False


def _declare_operators() -> Any:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in _DECLARED_ALWAYS:
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    return library


def _is_compile_supported(device_type: str) -> Any:
    return importlib.import_module(_COMPILER).is_compile_supported(device_type)


def _load_compiler_name(name: str) -> Any:
    if name.startswith("__"):  # the import system asks for these
        raise AttributeError(name)
    _remove_stand_in()
    return getattr(importlib.import_module(_COMPILER), name)


def _remove_stand_in() -> None:
    if getattr(sys.modules.get(_COMPILER), "__getattr__", None) is _load_compiler_name:
        del sys.modules[_COMPILER]


@contextlib.contextmanager
def _without_compiler() -> "Iterator[None]":
    """Let torchvision be imported without torch's compiler, unless it needs more of it than this one function."""
    if _COMPILER in sys.modules:
        yield
        return
    stand_in: Any = ModuleType(_COMPILER)
    stand_in.is_compile_supported = _is_compile_supported
    stand_in.__getattr__ = _load_compiler_name
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        _remove_stand_in()


# torch forgets the declarations when the library object goes, so it is kept for the life of the process.
_declarations = None if not hasattr(torch, "library") or _has_loadable_operators() else _declare_operators()

try:
    with _without_compiler():
        from torchvision import datasets, models
except ImportError as error:
    raise BadTask(
        "torchvision",
        f"none for torch {torch.__version__} ({error})",
        "the torchvision that belongs to this torch, or a network that needs none: digits-cnn, lenet5, small-cnn",
    ) from error
