"""JSON of others is bounded: what is beyond a bound is refused at once, what fedge writes is read back."""

import json
import os
import re
from pathlib import Path

import pytest
from contracts.crashing import disk_full
from hypothesis import given
from hypothesis import strategies as st

from fedge import json_reader
from fedge.errors import BadInput
from fedge.json_reader import MAX_DEPTH, MalformedJson, parse_json, read_json
from fedge.jsonlines import JsonLines, replay_lines

ROOT = Path(__file__).resolve().parents[2]
OWN_PROCESSES = {
    *("fedge/characterisation/sweep_store.py", "experiments/api.py"),
    *("fedge/serving/private_workers.py", "server/exporters/ray_boards.py", "experiments/backends/ray_cluster.py"),
    *("experiments/backends/run_submission.py", "experiments/fleet/inventory.py"),
}
"""Files that parse what this program or a program that it started has just printed."""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner)
    ),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_what_was_written_is_read_back(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)

    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"9" * 5_000,
        str(2**63).encode(),
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        "\ud800",
        b"NaN",
        b"1e999",
        b"[-Infinity]",
    ],
)
def test_what_is_beyond_a_bound_is_refused_in_one_short_line(data):
    with pytest.raises(MalformedJson) as refused:
        parse_json(data)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


def test_the_deepest_nesting_and_whole_characters_outside_of_ascii_are_read():
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) == json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert parse_json(rb'"\ud83d\ude00"') == "\U0001f600"


def test_numbers_that_are_not_finite_are_read_where_they_may_stand():
    assert str(parse_json("[NaN, 1e999]", finite=False)) == "[nan, inf]"


def test_a_file_that_cannot_be_read_is_named_with_what_is_right(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    with pytest.raises(BadInput, match=r"a\.json: got a file that cannot be read .*; the right one"):
        read_json(path, "the right one")
    monkeypatch.setattr(json_reader, "MAX_BYTES", 5)
    path.write_text("[1, 2, 3]")
    with pytest.raises(BadInput, match="more than"):
        read_json(path, "the right one")


def test_files_and_messages_of_others_go_through_this_reader():
    folders = ("fedge", "server", "clients", "experiments")
    files = {str(path.relative_to(ROOT)): path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    standing_alone = ("fedge/worker/", "fedge/powerd/")  # Python 3.6: they check their own
    parsing = {
        name
        for name, path in files.items()
        if not name.startswith(standing_alone) and re.search(r"json\.loads?\(", path.read_text(encoding="utf-8"))
    }

    assert parsing == OWN_PROCESSES


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
