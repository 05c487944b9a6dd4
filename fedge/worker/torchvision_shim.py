"""The one door to torchvision, open even where torchvision's compiled part does not fit the torch that is installed.

A torchvision built for CUDA beside a torch without it (or the other way round) cannot load its compiled operators, and
then ``import torchvision`` fails: it describes the shapes of ``torchvision::nms`` and ``torchvision::qnms`` to torch,
which knows no such operators. Declaring the two is enough, because models and data sets never call them; code that
does call them still gets torchvision's own error. Where the compiled part loads, nothing is declared here, and neither
with a torch that is too old to be told of operators (before 1.12), whose torchvision describes none.
"""

import importlib.util
from pathlib import Path
from typing import Any

import torch

from fedge.worker.tasks import BadTask

__all__ = ["datasets", "models", "require_function"]

_DECLARED_ALWAYS = ("nms", "qnms")
"""The operators that torchvision describes to torch whether or not its compiled part was loaded."""


def require_function(module: Any, name: str) -> Any:
    """The function ``name`` of a part of torchvision; raises ``BadTask`` where this release does not have it."""
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


# torch forgets the declarations when the library object goes, so it is kept for the life of the process.
_declarations = None if not hasattr(torch, "library") or _has_loadable_operators() else _declare_operators()

try:
    from torchvision import datasets, models
except ImportError as error:
    raise BadTask(
        "torchvision",
        f"none for torch {torch.__version__} ({error})",
        "the torchvision that belongs to this torch, or a network that needs none: digits-cnn, lenet5, small-cnn",
    ) from error
