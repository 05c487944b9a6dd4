"""A journal's file keeps every whole line, has one writer, and loses at most the line that was being written."""

from __future__ import annotations

import os

import pytest
from contracts.crashing import disk_full
from hypothesis import given
from hypothesis import strategies as st

from fedge.errors import BadInput
from fedge.jsonlines import JsonLines, replay_lines

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


class Lines(JsonLines):
    def __init__(self, path):
        super().__init__(path, "it", lambda _, raw: (None, len(raw)))

    def add(self, event):
        self._append(event)


def written(path, events):
    with Lines(path) as lines:
        for event in events:
            lines.add(event)
    return path.read_bytes()


@given(st.lists(values, max_size=5), st.data())
def test_a_file_cut_anywhere_gives_its_whole_lines_and_their_length(tmp_path_factory, events, data):
    path = tmp_path_factory.mktemp("lines") / "journal"
    raw = written(path, events)
    cut = data.draw(st.integers(0, len(raw)))
    seen = []

    whole = replay_lines(path, raw[:cut], seen.append, "right")

    assert seen == events[: raw[:cut].count(b"\n")]
    assert raw[:whole].count(b"\n") == len(seen)
    assert b"\n" not in raw[whole:cut]


def test_a_line_that_makes_no_sense_is_named(tmp_path):
    def take(event):
        if event == 2:
            raise KeyError("x")

    with pytest.raises(BadInput, match=r"journal: line 2: got a line that makes no sense; the right one"):
        replay_lines(tmp_path / "journal", b"1\n2\n", take, "the right one")
    with pytest.raises(BadInput, match="line 3"):
        replay_lines(tmp_path / "journal", b"{}\n{}\n}\n", lambda event: None, "the right one")


def test_only_one_process_writes(tmp_path):
    path = tmp_path / "journal"
    with Lines(path), pytest.raises(BadInput, match="a journal that another `it` writes"):
        Lines(path)
    with Lines(path):
        pass


def test_a_disk_that_is_full_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    with Lines(path) as lines:
        monkeypatch.setattr(os, "fsync", disk_full)
        with pytest.raises(BadInput, match=r"No space left on device.*same command"):
            lines.add({})


def test_a_path_that_cannot_be_written_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(BadInput, match="cannot be written"):
        Lines(tmp_path / "nosuch" / "journal")
