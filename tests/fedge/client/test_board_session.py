"""A board's share lies in a file of its own, which is told by its hash without ever being in memory as a whole."""

import hashlib
from pathlib import Path

from fedge.client import board_session
from fedge.client.board_session import prepare_source
from fedge.experiment import Experiment

EXPERIMENT = Experiment.model_validate(
    {"fleet": [{"device": "nano", "name": "board", "count": 2}], "workload": {"task": "digits-cnn"}}
)


def test_a_share_that_was_written_is_hashed_in_blocks(tmp_path, monkeypatch):
    content = bytes(range(256)) * 10_000
    (tmp_path / f"{board_session._partition_name(EXPERIMENT, 0)}.npz").write_bytes(content)

    def whole(path: Path) -> bytes:
        raise MemoryError(f"{path} does not fit")

    monkeypatch.setattr(Path, "read_bytes", whole)
    source = prepare_source(EXPERIMENT, 0, tmp_path, None)

    assert source["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_boards_own_folder_is_taken_as_it_is(tmp_path):
    assert prepare_source(EXPERIMENT, 0, tmp_path, "/data/mine") == {"folder": "/data/mine"}
    assert list(tmp_path.iterdir()) == []
