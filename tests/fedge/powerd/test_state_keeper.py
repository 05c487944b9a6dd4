"""The state found, on disk: whole or not there, in private, and never in the way of a start."""

import os
from pathlib import Path

import pytest

from fedge.powerd import state_keeper

STATE = {"cores": [1, 1, 1, 0], "nvpmodel": 2}


def test_what_was_written_is_read(tmp_path):
    assert state_keeper.load_state(tmp_path) is None
    state_keeper.save_state(tmp_path, state_keeper.SavedState("boot", STATE))
    assert state_keeper.load_state(tmp_path) == state_keeper.SavedState("boot", STATE)
    assert (tmp_path / state_keeper.FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [state_keeper.FILE]


def test_it_can_be_taken_away_twice(tmp_path):
    state_keeper.save_state(tmp_path, state_keeper.SavedState("boot", STATE))
    state_keeper.remove_state(tmp_path)
    state_keeper.remove_state(tmp_path)
    assert state_keeper.load_state(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100000,
        b'{"format":1,"boot":"b","state":{}}',
        b'{"format":2,"boot":"b"}',
        b'{"format":2,"boot":1,"state":{}}',
    ],
)
def test_a_corrupt_file_is_set_aside_with_the_reason(tmp_path, text):
    (tmp_path / state_keeper.FILE).write_bytes(text)
    with pytest.raises(state_keeper.CorruptState, match=r"found\.json\.corrupt"):
        state_keeper.load_state(tmp_path)
    assert state_keeper.load_state(tmp_path) is None
    assert (tmp_path / "found.json.corrupt").read_bytes() == text


@pytest.mark.parametrize(("owner", "failing"), [(os, "fsync"), (Path, "replace")])
def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch, owner, failing):
    state_keeper.save_state(tmp_path, state_keeper.SavedState("old", STATE))

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, failing, fail)
    with pytest.raises(OSError):
        state_keeper.save_state(tmp_path, state_keeper.SavedState("new", STATE))
    monkeypatch.undo()
    assert state_keeper.load_state(tmp_path) == state_keeper.SavedState("old", STATE)


def test_the_file_is_on_disk_before_it_has_its_name_and_the_folder_after(tmp_path, monkeypatch):
    order = []

    def spy(owner, name):
        real = getattr(owner, name)

        def call(*arguments):
            order.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    spy(os, "fsync")
    spy(Path, "replace")
    state_keeper.save_state(tmp_path, state_keeper.SavedState("boot", STATE))
    assert order == ["fsync", "replace", "fsync"]
    state_keeper.remove_state(tmp_path)
    assert order[3:] == ["fsync"]


def test_a_changed_number_is_found_by_the_checksum(tmp_path):
    state_keeper.save_state(tmp_path, state_keeper.SavedState("boot", STATE))
    path = tmp_path / state_keeper.FILE
    path.write_bytes(path.read_bytes().replace(b'"nvpmodel": 2', b'"nvpmodel": 3'))
    with pytest.raises(state_keeper.CorruptState, match="checksum"):
        state_keeper.load_state(tmp_path)
