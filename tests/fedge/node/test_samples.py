"""A board's share lies in a file of its own, which is told by its hash without ever being in memory as a whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedge.experiment import Experiment
from fedge.node import samples
from fedge.node.samples import source_of

EXPERIMENT = Experiment.model_validate(
    {"fleet": [{"device": "nano", "name": "board", "count": 2}], "workload": {"task": "digits-cnn"}}
)


def test_a_share_that_was_written_is_hashed_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / f"{samples._name_of(EXPERIMENT, 0)}.npz").write_bytes(content)

    def whole(path: Path) -> bytes:
        raise MemoryError(f"{path} does not fit")

    monkeypatch.setattr(Path, "read_bytes", whole)
    source = source_of(EXPERIMENT, 0, tmp_path, None)

    assert source["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_boards_own_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert source_of(EXPERIMENT, 0, tmp_path, "/data/mine") == {"folder": "/data/mine"}
    assert list(tmp_path.iterdir()) == []
