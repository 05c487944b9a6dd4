"""The knowledge folder: entries are whole or absent, damaged ones are named, and the index is only a copy."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from fedge.errors import BadInput
from fedge.knowledge.knowledge_folder import (
    INDEX,
    KnowledgeEntry,
    add_entry,
    encode_measurements,
    find_entry,
    forget_entry,
    hash_content,
    list_entries,
    read_content,
    read_measurements,
)
from fedge.types import Measurement, PowerMode
from fedge.wire import to_json

ROWS = (Measurement(PowerMode(4, 1000.0, 900.0, 1600.0), 10, 0.5, 7.0),)
CONTENT = encode_measurements({"nano-1": ROWS})


def entry(name: str, content: bytes = CONTENT, **changes: object) -> KnowledgeEntry:
    fields = {
        "id": name,
        "form": "run",
        "device": "nano",
        "workload": "resnet18-imagenet",
        "batch_size": 16,
        "label": "measured",
        "source": "run a",
        "file": f"entries/{name}.rows",
        "sha256": hash_content(content),
        "date": "2026-05-01T10:00:00Z",
        "rows": 1,
    }
    return KnowledgeEntry(**fields | changes)


def test_what_is_added_is_listed_oldest_first_and_read_back(tmp_path):
    new, old = entry("b"), entry("a", date="2025-05-01T10:00:00Z", conditions={"torch": "2.0"})
    for one in (new, old):
        add_entry(tmp_path, one, CONTENT)

    assert list_entries(tmp_path).entries == (old, new)
    assert read_measurements(tmp_path, new).boards == {"nano-1": ROWS}


def test_an_entry_of_the_same_name_is_replaced(tmp_path):
    more = encode_measurements({"nano-1": (*ROWS, *ROWS)})
    add_entry(tmp_path, entry("a"), CONTENT)
    list_entries(tmp_path)
    add_entry(tmp_path, entry("a", more, rows=2), more)

    assert [one.rows for one in list_entries(tmp_path).entries] == [2]
    assert len(read_measurements(tmp_path, entry("a", more)).boards["nano-1"]) == 2


def test_a_damaged_description_is_named_and_the_others_are_listed(tmp_path):
    for name in ("a", "b", "c"):
        add_entry(tmp_path, entry(name), CONTENT)
    (tmp_path / "entries" / "b.json").write_text('{"id": "b"')
    (tmp_path / "entries" / "c.json").write_text(json.dumps({"id": "c"}))

    listing = list_entries(tmp_path)

    assert [one.id for one in listing.entries] == ["a"]
    assert len(listing.damaged) == 2
    assert "b.json: a damaged description" in listing.damaged[0]


@pytest.mark.parametrize("index", ["", "[]", "{", '{"a.json": 3}', '{"a.json": {"stamp": [1, 2]}}'])
def test_the_index_is_made_again_whatever_it_holds(tmp_path, index):
    add_entry(tmp_path, entry("a"), CONTENT)
    (tmp_path / INDEX).write_text(index)

    assert [one.id for one in list_entries(tmp_path).entries] == ["a"]
    assert list(json.loads((tmp_path / INDEX).read_text())) == ["a.json"]


def test_the_index_spares_reading_and_sees_what_changed(tmp_path):
    add_entry(tmp_path, entry("a"), CONTENT)
    list_entries(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    index["a.json"]["entry"]["source"] = "from the index"
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert list_entries(tmp_path).entries[0].source == "from the index"

    add_entry(tmp_path, entry("a", source="a longer name than before"), CONTENT)
    assert list_entries(tmp_path).entries[0].source == "a longer name than before"


def test_a_changed_or_missing_file_is_refused_in_one_line(tmp_path):
    add_entry(tmp_path, entry("a"), CONTENT)
    (tmp_path / "entries" / "a.rows").write_bytes(CONTENT.replace(b"0.5", b"0.6"))
    with pytest.raises(BadInput, match="another checksum"):
        read_content(tmp_path, entry("a"))

    (tmp_path / "entries" / "a.rows").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        read_content(tmp_path, entry("a"))


def test_a_file_outside_of_the_folder_is_neither_read_written_nor_removed(tmp_path):
    outside = tmp_path / "mine.txt"
    outside.write_bytes(CONTENT)
    folder = tmp_path / "knowledge"
    bad = entry("a", file="../mine.txt")
    add_entry(folder, entry("a"), CONTENT)

    with pytest.raises(BadInput, match="outside"):
        read_content(folder, bad)
    with pytest.raises(BadInput, match="not that of a"):
        add_entry(folder, bad, b"other")
    forget_entry(folder, bad)
    assert outside.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "names",
    [
        {"file": "entries/b.rows"},
        {"file": "entries/a.json"},
        {"file": "boards/a.yaml"},
        {"file": "costs/a.yaml"},
        {"file": "entries/a"},
        {"form": "calibration", "id": "calibration-a", "file": "costs/b.yaml"},
        {"workload": "/home/me/table"},
        {"workload": "../../table"},
    ],
)
def test_an_entry_of_others_that_names_what_is_not_its_own_is_neither_listed_nor_added(tmp_path, names):
    raw = json.loads(to_json(entry("a"))) | names
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / "a.json").write_text(json.dumps(raw))

    assert list_entries(tmp_path).entries == ()
    with pytest.raises(BadInput, match=r"not that of|a path"):
        add_entry(tmp_path / "mine", entry("a", **names), CONTENT)
    assert not (tmp_path / "mine").exists()


def test_a_forgotten_entry_is_gone_and_forgetting_it_twice_is_no_error(tmp_path):
    add_entry(tmp_path, entry("a"), CONTENT)
    for _ in range(2):
        forget_entry(tmp_path, entry("a"))

    assert list_entries(tmp_path).entries == ()
    assert not (tmp_path / "entries" / "a.rows").exists()


def test_an_entry_is_found_by_the_beginning_of_its_name_if_that_is_one_only(tmp_path):
    for name in ("run-1", "run-12"):
        add_entry(tmp_path, entry(name), CONTENT)

    assert find_entry(tmp_path, "run-1").id == "run-1"
    assert find_entry(tmp_path, "run-12").id == "run-12"
    with pytest.raises(BadInput, match="the beginning of 2 entries"):
        find_entry(tmp_path, "run")
    with pytest.raises(BadInput, match="no such entry"):
        find_entry(tmp_path, "table")


def _write_many(folder: Path, first: int) -> None:
    for number in range(first, first + 20):
        add_entry(folder, entry(f"e{number % 30}"), CONTENT)
        list_entries(folder)


def test_two_writers_at_once_lose_nothing(tmp_path):
    with ProcessPoolExecutor(2) as pool:
        for done in [pool.submit(_write_many, tmp_path, first) for first in (0, 15)]:
            done.result()

    listing = list_entries(tmp_path)
    assert len(listing.entries) == 30
    assert listing.damaged == ()
    assert all(read_content(tmp_path, one) == CONTENT for one in listing.entries)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "k").write_text("")
    with pytest.raises(BadInput, match="a folder of knowledge"):
        list_entries(tmp_path / "k")
