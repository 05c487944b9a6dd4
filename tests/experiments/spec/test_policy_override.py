"""An override of the policy's name leaves out what the other policy does not take, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.spec.experiment_loader import load_experiment

FILE = "fleet: [nano]\npolicy: {name: energy-budget, budget_j: 9000, confidence: 0.9}\n"


@pytest.mark.parametrize(
    ("overrides", "limits", "noted"),
    [
        (["policy.name=balanced"], {"confidence": 0.9}, ["budget_j"]),
        (["policy.name=maxn"], {}, ["budget_j, confidence"]),
        (["policy.deadline_s=9", "policy.name=least-energy"], {"confidence": 0.9, "deadline_s": 9.0}, ["budget_j"]),
        (["policy.name=energy-budget"], {"budget_j": 9000.0, "confidence": 0.9}, []),
        (["policy.budget_j=5"], {"budget_j": 5.0, "confidence": 0.9}, []),
        (["policy.name=mine:choose"], {"budget_j": 9000.0, "confidence": 0.9}, []),
        (["policy=maxn"], {}, ["budget_j, confidence"]),
        (["policy.confidence=0.8", "policy=balanced"], {"confidence": 0.8}, ["budget_j"]),
        (["policy=balanced", "policy.time_weight=0.7"], {"time_weight": 0.7}, ["budget_j, confidence"]),
        (["policy.name=maxn", "policy=least-energy"], {}, ["budget_j, confidence"]),
    ],
)
def test_options_of_the_file_s_policy_follow_if_the_other_takes_them(
    overrides: list[str], limits: dict[str, float], noted: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(FILE, encoding="utf-8")
    notes: list[str] = []

    found = load_experiment(path, overrides, note=notes.append)

    assert found.policy.limits == limits
    assert [note.partition(" of the file's policy ")[0] for note in notes] == noted
