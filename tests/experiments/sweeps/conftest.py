"""A small experiment and the files of sweeps over it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "rounds": 1,
    "backend": "local",
    "fleet": [{"device": "nano", "count": 2}],
    "workload": {"task": "digits-cnn", "local_epochs": 0.1},
}
WriteSweep = Callable[..., Path]


@pytest.fixture
def write_sweep(tmp_path: Path) -> WriteSweep:
    """Write the file of a sweep over the small experiment; keys as given."""

    def write(**keys: Any) -> Path:
        (tmp_path / "small.yaml").write_text(yaml.safe_dump(EXPERIMENT))
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"experiment": "small.yaml", **keys}, sort_keys=False))
        return path

    return write
