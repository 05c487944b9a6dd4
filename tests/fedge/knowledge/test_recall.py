"""What a run recalls: the same board first, then its kind; nothing of another workload, and nothing damaged."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from fedge.errors import BadInput
from fedge.knowledge.knowledge_folder import KnowledgeEntry
from fedge.knowledge.recall import (
    MAX_DONORS,
    MAX_MODES,
    MAX_REPEATS,
    NO_KNOWLEDGE,
    RECORDED,
    BoardEvidence,
    ClientIdentity,
    RunKnowledge,
    limit_measurements,
    mark_recorded,
    read_run_knowledge,
    recall_measurements,
    write_run_knowledge,
)
from fedge.types import Measurement, PowerMode

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NANOS = [ClientIdentity(f"nano-{i}", f"nano-{i}", "nano", "net", 16, {"torch": "2.0"}) for i in (1, 2)]


def seen(i: int, step_s: float = 1.0, power_w: float = 5.0) -> Measurement:
    return Measurement(PowerMode(4, 1000.0 + i, 900.0, 1600.0), 10, step_s, power_w)


def entry(name: str, date: str = "2026-05-01T00:00:00Z", **changes: object) -> KnowledgeEntry:
    fields = {
        "id": name,
        "form": "run",
        "device": "nano",
        "workload": "net",
        "batch_size": 16,
        "label": "measured",
        "source": "a run",
        "file": f"entries/{name}",
        "sha256": "0" * 64,
        "date": date,
        "rows": 1,
    }
    return KnowledgeEntry(**fields | changes)


def recall(*found: tuple[KnowledgeEntry, Mapping[str, Sequence[Measurement]]]) -> RunKnowledge:
    by_id = {one.id: boards for one, boards in found}

    def read(one: KnowledgeEntry) -> list[BoardEvidence]:
        return [BoardEvidence(one, board, tuple(rows)) for board, rows in by_id[one.id].items()]

    return recall_measurements(NANOS, [one for one, _ in found], read, NOW)


def test_a_board_recalls_its_own_measurements_and_its_kind_those_of_boards_that_do_not_take_part():
    found = recall((entry("a"), {"nano-1": [seen(1)], "nano-9": [seen(2)]}))

    assert found.own == {"nano-1": (seen(1),)}
    assert [(peer.name, peer.like, peer.measurements) for peer in found.peers] == [
        ("nano-9 (recalled for nano-1)", "nano-1", (seen(2),))
    ]
    assert [one.relation for one in found.origins["nano-1"]] == ["same board", "same kind"]
    assert [one.relation for one in found.origins["nano-2"]] == ["same kind"]


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "other"},
        {"batch_size": 32},
        {"device": "tx2"},
        {"kind": "infer"},
        {"form": "calibration"},
        {"conditions": {"serving": "a service"}},
        {"conditions": {"truth": "model"}},
    ],
)
def test_nothing_of_other_work_or_other_boards_is_recalled(changes):
    found = recall((entry("a", **changes), {"nano-1": [seen(1)]}))

    assert dataclasses.replace(found, origins={}) == NO_KNOWLEDGE


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({"conditions": {"torch": "2.0"}}, True),
        ({"conditions": {"torch": "1.9"}}, False),
        ({"conditions": {"l4t": "35.1"}}, True),
        ({"date": "2025-07-01T00:00:00Z"}, True),
        ({"date": "2025-05-01T00:00:00Z"}, False),
    ],
)
def test_old_measurements_and_those_under_other_versions_count_as_another_boards(changes, own):
    found = recall((entry("a", **changes), {"nano-1": [seen(1)]}))

    assert bool(found.own) == own
    assert bool(found.peers) != own


def test_figures_of_a_recorded_folder_are_recalled_by_such_boards_alone():
    figures = {"nano-1": [seen(1)]}
    recorded = entry("a", boards=("nano-1",), label="estimated", conditions={"truth": RECORDED})

    def read(one: KnowledgeEntry) -> list[BoardEvidence]:
        return [BoardEvidence(one, board, tuple(rows)) for board, rows in figures.items()]

    clients = mark_recorded(NANOS, [recorded])
    known = recall_measurements(clients, [recorded], read, NOW)
    assert [client.is_recorded for client in clients] == [True, False]
    assert (dict(known.own), known.peers, known.recorded) == ({"nano-1": (seen(1),)}, (), ("nano-1",))
    newer = entry("b", "2026-05-02T00:00:00Z", boards=("nano-1",))
    assert mark_recorded(NANOS, [recorded, newer]) == tuple(NANOS)
    assert recall_measurements(NANOS, [recorded], read, NOW) == dataclasses.replace(
        NO_KNOWLEDGE, origins={"nano-1": (), "nano-2": ()}
    )


def test_the_newest_measurements_of_a_mode_are_kept_and_come_last():
    old, new = entry("a", "2026-01-01T00:00:00Z"), entry("b")
    found = recall((new, {"nano-1": [seen(1, 2.0)]}), (old, {"nano-1": [seen(1, 1.0 + i) for i in range(5)]}))

    assert [one.step_s for one in found.own["nano-1"]] == [4.0, 5.0, 2.0]


def test_a_damaged_entry_becomes_a_note_and_the_others_are_recalled():
    def read(one: KnowledgeEntry) -> list[BoardEvidence]:
        if one.id == "bad":
            raise BadInput("bad.rows", "a damaged file", "a whole one")
        return [BoardEvidence(one, "nano-1", (seen(1),))]

    found = recall_measurements(NANOS, [entry("bad"), entry("good")], read, NOW)

    assert found.own == {"nano-1": (seen(1),)}
    assert found.notes == ("bad.rows: got a damaged file; a whole one; skipped",)


def test_a_board_that_was_measured_as_another_kind_than_the_experiment_says_is_noted_once():
    other = {"device": "nano-super", "boards": ("nano-1", "nano-9")}

    found = recall((entry("a", **other), {"nano-1": [seen(1)]}), (entry("b", **other), {"nano-1": [seen(2)]}))

    assert found.own == {}
    assert found.notes == ("nano-1 was measured as nano-super, the experiment says nano: that is not recalled",)
    assert recall((entry("c", workload="other", **other), {"nano-1": [seen(1)]})).notes == ()


def test_only_the_boards_of_the_newest_entries_are_recalled_as_peers():
    many = [(entry(f"e{i:02d}", f"2026-05-{i + 1:02d}T00:00:00Z"), {f"b{i:02d}": [seen(i)]}) for i in range(20)]

    assert [peer.name.split()[0] for peer in recall(*many).peers] == [
        f"b{i:02d}" for i in range(19, 19 - MAX_DONORS, -1)
    ]


def test_a_long_table_is_cut_to_the_fastest_modes_the_front_and_a_spread():
    rows = [
        Measurement(PowerMode(c, 100.0 * f, 90.0 * g, 1600.0), 1, 8.0 / (f + g * c), 2.0 + 0.01 * (f * g * c) ** 1.2)
        for c in (1, 2, 4)
        for f in range(1, 13)
        for g in range(1, 13)
    ]
    kept = limit_measurements(rows)

    assert len(kept) == MAX_MODES
    assert min(rows, key=lambda row: row.step_s) in kept
    assert min(rows, key=lambda row: row.step_s * row.power_w) in kept
    assert {row.mode.cores for row in kept} == {1, 2, 4}
    assert limit_measurements(rows[:30]) == tuple(rows[:30])


def test_implausible_and_throttled_measurements_are_not_recalled_and_repeats_are_few():
    hot = dataclasses.replace(seen(1), throttled=True)
    rows = [hot, seen(2, float("nan")), seen(3, 0.0), *[seen(4, 1.0 + i) for i in range(9)]]

    assert [one.step_s for one in limit_measurements(rows)] == [7.0, 8.0, 9.0][-MAX_REPEATS:]


def test_a_run_keeps_what_it_recalled(tmp_path):
    found = recall((entry("a"), {"nano-1": [seen(1)], "nano-9": [seen(2)]}))
    assert read_run_knowledge(tmp_path) == NO_KNOWLEDGE

    write_run_knowledge(tmp_path, found)
    assert read_run_knowledge(tmp_path) == found

    (tmp_path / "knowledge.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        read_run_knowledge(tmp_path)


def test_a_measurement_that_two_entries_hold_counts_once_with_the_entry_that_names_the_board():
    rows, more = [seen(1), seen(2)], [seen(2), seen(3)]
    table = entry("table", form="table", boards=("nano-1",))
    model = entry("model", "2026-05-02T00:00:00Z", form="model")
    later = entry("later", "2026-05-03T00:00:00Z", form="model")

    found = recall((table, {"nano-1": rows}), (model, {"model": rows}), (later, {"later": more}))

    assert found.own == {"nano-1": tuple(rows)}
    assert [(peer.name, peer.measurements) for peer in found.peers] == [
        ("later (recalled for nano-1)", (seen(3),)),
    ]
    assert found.notes == (
        "later: 1 of 2 measurements are those of table, which count once",
        "model: 2 of 2 measurements are those of table, which count once",
    )


def test_a_few_measurements_of_a_large_table_count_once_though_neither_names_a_board():
    table = entry("table", form="table"), {"table": [seen(i) for i in range(9)]}
    model = entry("model", "2026-05-02T00:00:00Z", form="model"), {"model": [seen(1), seen(2)]}

    assert sum(len(peer.measurements) for peer in recall(table, model).peers) == 9


def test_figures_that_coincide_by_chance_or_under_another_kind_are_measurements_of_their_own():
    serving = ClientIdentity("nano-3", "nano-3", "nano", "net", 16, {"serving": "a service"})
    first = entry("first", boards=("nano-1",))
    second = entry("second", "2026-05-02T00:00:00Z", boards=("nano-2",))
    beside = entry("beside", "2026-05-03T00:00:00Z", boards=("nano-3",), conditions={"serving": "a service"})
    rows = {"first": [seen(1), seen(2), seen(5)], "second": [seen(2), seen(3), seen(4)], "beside": [seen(1), seen(2)]}

    def read(one: KnowledgeEntry) -> list[BoardEvidence]:
        return [BoardEvidence(one, one.boards[0], tuple(rows[one.id]))]

    found = recall_measurements([*NANOS, serving], [first, second, beside], read, NOW)

    assert found.own == {board: tuple(rows[one.id]) for one in (first, second, beside) for board in one.boards}
    assert found.notes == ()
