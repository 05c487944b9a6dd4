"""Programs outside the package, such as those of the playbooks, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_program(path: Path) -> ModuleType:
    """Import a program from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
