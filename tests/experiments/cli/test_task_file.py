"""A task file beside the experiment is found from any folder, trains, and is refused in one line where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a task trains with torch")

from experiments.spec.experiment_checks import check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput

TASK = """
from torch import nn

def model(shape):
    pixels = shape.channels * shape.side ** 2
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, shape.classes))
"""


def written(tmp_path: Path, task: str, text: str = TASK) -> Path:
    (tmp_path / "linear.py").write_text(text, encoding="utf-8")
    path = tmp_path / "exp.yaml"
    path.write_text(f"fleet: [{{device: orin-nano}}]\nworkload: {{task: {task}}}\n", encoding="utf-8")
    return path


def test_a_task_file_is_named_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "linear.py")
    monkeypatch.chdir("/")

    assert load_experiment(path).workload.task == str(tmp_path / "linear.py")


def test_a_task_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path, "other.py"))

    with pytest.raises(BadInput, match=r"other\.py"):
        check_experiment(experiment)


def test_a_task_file_without_a_model_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path, "linear.py", "def loss(scores, labels):\n    return scores.sum()\n"))

    with pytest.raises(BadInput, match=r"model\(shape\)"):
        check_experiment(experiment)


@pytest.mark.parametrize(
    "mistake",
    [
        TASK.replace("nn.Linear(pixels,", "nn.Linear(3,"),
        TASK + "\ndef loss(scores, labels):\n    return nn.functional.cross_entropy(scores, labels, nope=1)\n",
    ],
)
def test_a_mistake_that_shows_only_in_training_is_told_once_before_the_run(tmp_path: Path, mistake: str) -> None:
    data = "\ndef data(source):\n    from fedge.worker import sources\n    return sources.synthetic(64, 1, 8, 10)\n"
    experiment = load_experiment(written(tmp_path, "linear.py", mistake + data))

    with pytest.raises(BadInput, match=r"linear\.py"):
        check_experiment(experiment)
