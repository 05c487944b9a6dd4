"""The terminal and the report say what the boards started from, and how each entry was used."""

import dataclasses
from types import SimpleNamespace

import pytest

from experiments.report.run.run_tables import build_knowledge_sections, describe_knowledge
from fedge.knowledge.recall import RecalledOrigin, Relation

NOTHING = {
    "folder": "k",
    "boards": 0,
    "measurements": 0,
    "peers": 0,
    "contradicted": {},
    "probes_saved": 0,
    "origins": {},
    "notes": [],
}


def origin(relation: Relation) -> dict[str, object]:
    made = RecalledOrigin(
        "table-1", form="table", relation=relation, board="b", rows=24, label="measured", date="2026-05-01T00:00:00Z"
    )
    return dataclasses.asdict(made)


OTHER = {"nano-1": [origin("other workload")], "nano-2": [origin("other workload")]}


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({}, "knowledge: nothing fits in k;"),
        ({"origins": OTHER}, "knowledge: only 1 reference table of other workloads;"),
        (
            {"origins": OTHER, "peers": 2},
            "knowledge: measurements of 2 other boards of the same kinds, 1 reference table of other workloads",
        ),
        (
            {"boards": 1, "probes_saved": 1},
            "knowledge: 1 board started from its own earlier measurements; at most 1 probe",
        ),
        (
            {"boards": 3, "peers": 1, "contradicted": {"nano-1": 1}},
            "knowledge: 2 boards started from their own earlier measurements, measurements of 1 other board of",
        ),
        ({"boards": 1, "contradicted": {"nano-1": 1}}, "note: what was known of nano-1 contradicts"),
    ],
)
def test_the_terminal_says_what_was_used(changes, start):
    assert next(describe_knowledge(NOTHING | changes)).startswith(start)


@pytest.mark.parametrize(
    ("relation", "use"),
    [
        ("same board", "as its own"),
        ("same kind", "as of another board, while it agrees"),
        ("other workload", "as a reference table"),
    ],
)
def test_the_report_says_how_an_entry_was_used(relation, use):
    summary = {"knowledge": NOTHING | {"origins": {"nano-1": [origin(relation)]}}}
    (section,) = build_knowledge_sections(SimpleNamespace(summary=summary))

    assert f">{use}<" in section.html
