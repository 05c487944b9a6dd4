"""Tasks of one's own on a desk board: its power daemon, and its worker under this Python and under a vendor's."""

import dataclasses
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the worker trains with torch")

from contracts.desk import Desk, desk, note_idle
from contracts.free_tasks import CHARACTERS, LANGUAGE_MODEL, TABLE, write_texts

from fedge.client import real
from fedge.client.worker_training import load_worker_task
from fedge.errors import WorkerFailed
from fedge.experiment import Experiment
from fedge.types import RoundGoal
from fedge.wire import RequestMessage
from fedge.worker.trainer import Trainer
from fedge.worker.worker_client import WorkerClient
from fedge.workloads import load_task
from fedge.workloads.image_task import ImageTask

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("desk")]
ROOT = Path(__file__).resolve().parents[3]
IMAGES = """
from torch import nn
from fedge.worker.sources import make_synthetic


def model(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.side**2, shape.classes))


def data(source):
    return make_synthetic(64, 1, 8, 4)
"""
HAS_LLM = all(importlib.util.find_spec(name) for name in ("transformers", "peft"))
SIZES = {"samples": 16, "channels": 1, "side": 8, "classes": 10}
KINDS = {"image": IMAGES, "text": CHARACTERS, "table": TABLE, "lora": LANGUAGE_MODEL}


def vendor_pythons() -> dict[str, str]:
    """Interpreters of .ci/test-vendor that have torch, by name."""
    folders = [Path(os.environ.get("VENDOR_ENVS", ROOT / ".venv-vendor")) / name for name in ("v36", "v38")]
    return {folder.name: str(folder / "bin/python") for folder in folders if (folder / "bin/python").is_file()}


@pytest.fixture(scope="module", params=["own", "v36", "v38"])
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Desk]]:
    python = {"own": sys.executable, **vendor_pythons()}.get(request.param)
    if python is None:
        pytest.skip("no such vendor Python; `make test-vendor` makes it")
    with desk("orin-nano-jp6", tmp_path_factory.mktemp("desk"), python=python) as found:
        note_idle(found)
        folder = found.settings.state_dir / "samples"
        write_texts(folder)
        settings = found.settings.model_copy(update={"data_folder": str(folder)})
        yield request.param, dataclasses.replace(found, settings=settings)


@pytest.mark.parametrize("kind", KINDS)
def test_an_own_task_trains_on_a_board(kind, board, tmp_path):
    python, found = board
    if kind == "lora" and (python != "own" or not HAS_LLM):
        pytest.skip("needs the extra llm")
    path = tmp_path / f"{kind}.py"
    path.write_text(KINDS[kind], encoding="utf-8")
    task = load_task(str(path), found.settings.data_folder)
    start = task.initial_arrays(3)
    experiment = Experiment.model_validate(
        {
            "fleet": [{"device": "orin-nano", "name": "board"}],
            "workload": {"task": str(path), "batch_size": 8, "local_epochs": 1, "learning_rate": 0.01},
            "exploration": {"share": 0.0},
        }
    )
    ask = RequestMessage("train", round=1, policy="balanced", goal=RoundGoal("balanced", 50, deadline_s=60.0))

    answer, trained = real.answer_request(experiment, found.settings, ask, start)

    assert answer.error is None
    assert list(trained.arrays) == list(start)
    assert any(not np.array_equal(trained.arrays[name], start[name]) for name in start)
    assert answer.report.measured.power_w > 0
    assert answer.report.link.moved_mb == pytest.approx(2e-6 * ask.model_bytes)
    if python == "own":
        assert isinstance(task, ImageTask)
        assert isinstance(task.trainer, Trainer)
        assert task.evaluate(trained.arrays)[0] < task.evaluate(start)[0] or kind == "image"


def test_a_missing_package_is_refused_with_its_cure_which_the_worker_remembers(board):
    _, found = board
    head = "import a_package_that_nobody_has\nimport json\nfrom another.one import part\n"
    text = head + "try:\n    import optional\nexcept ImportError:\n    pass\n\n\ndef model(shape):\n    return None\n"
    task = {"name": "mine.py", "source": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    cure = "-m pip install a_package_that_nobody_has another` on this machine (Python 3."

    with pytest.raises(WorkerFailed, match=r"mine.py, line 1") as caught:
        load_worker_task(found.settings.worker_socket, task, {"synthetic": SIZES})

    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)
    worker = WorkerClient(found.settings.worker_socket, 10.0)
    assert cure in worker.status()["refused"]
    load_worker_task(found.settings.worker_socket, {"builtin": "digits-cnn"}, {"synthetic": SIZES})
    assert worker.status()["refused"] is None
    worker.close()


def test_a_language_model_is_refused_where_its_packages_are_missing(board):
    python, found = board
    if python == "own":
        pytest.skip("has them, or not: test_language_models.py")
    digest = hashlib.sha256(LANGUAGE_MODEL.encode()).hexdigest()
    task = {"name": "lora.py", "source": LANGUAGE_MODEL, "sha256": digest}

    with pytest.raises(WorkerFailed, match=r"no transformers .* needs Python 3.10 .*-m pip install transformers"):
        load_worker_task(found.settings.worker_socket, task, {"folder": found.settings.data_folder or ""})
