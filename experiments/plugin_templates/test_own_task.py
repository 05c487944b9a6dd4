"""The contract of a task, by itself and in a run. Start it with
``pytest --import-mode=prepend test_own_task.py``.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import own_task
import pytest

torch = pytest.importorskip("torch", reason="a network needs the extra train")


def test_the_data_have_a_label_for_each_sample() -> None:
    samples = own_task.data({})

    assert len(samples.train_x) == len(samples.train_y) > 0
    assert len(samples.test_x) == len(samples.test_y) > 0
    assert set(np.unique(samples.train_y)) <= set(range(samples.classes))


def test_the_network_has_a_score_per_class_and_can_be_trained() -> None:
    samples = own_task.data({})
    channels, side = samples.train_x.shape[1:3]
    network = own_task.model(SimpleNamespace(channels=channels, side=side, classes=samples.classes))

    scores = network(torch.from_numpy(samples.train_x[:3]).float())
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(samples.train_y[:3])).backward()

    assert scores.shape == (3, samples.classes)
    assert all(one.grad is not None for one in network.parameters() if one.requires_grad)


def test_a_run_with_it_learns(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a run needs the extra sim")
    import fedge

    run = fedge.run(
        {
            "backend": "local",
            "rounds": 3,
            "fleet": ["orin-nano", "nano"],
            "workload": {"task": own_task.__file__, "local_epochs": 1},
        },
        folder=tmp_path / "run",
        quiet=True,
    )

    assert run.state == "finished"
    assert run.summary["final_accuracy"] > 1.5 / own_task.data({}).classes
