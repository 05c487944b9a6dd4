"""Tasks by name: fedge's own and the user's, found without torch, with clear words for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedge import workloads
from fedge.errors import BadInput, UnknownName

OWN_TASK = """
import numpy as np

class Mine:
    labels = np.array([0, 1])
    def __init__(self, data_dir, download):
        self.given = (data_dir, download)
    def initial_arrays(self, seed): ...
    buffers = ()

    def start(self, arrays, share, seed, options): ...
    def evaluate(self, arrays): ...

class Half:
    labels = np.array([0, 1])
    def __init__(self, data_dir, download): ...
    def evaluate(self, arrays): ...

class Odd:
    def __init__(self, path): ...
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_task_module.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_task_module", raising=False)
    return "own_task_module"


def modules_after(program: str, *asked: str) -> set[str]:
    code = f"import sys\n{program}\nprint(*[m for m in {asked!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_and_checking_load_neither_torch_nor_numpy() -> None:
    program = "from fedge import workloads; workloads.check_task('cifar10-resnet18'); workloads.data_findings()"
    assert modules_after(program, "torch", "torchvision", "sklearn", "numpy") == set()


def test_the_digits_need_neither_torchvision_nor_scikit_learn_nor_torchs_compiler() -> None:
    program = (
        "import numpy as np; from fedge.types import TrainOptions; from fedge.workloads import load_task\n"
        "task = load_task('digits-cnn'); task.train(task.initial_arrays(0), np.arange(20), 0, TrainOptions(1, 4, 0.1))"
    )
    assert modules_after(program, "torch", "torchvision", "sklearn", "torch._dynamo") == {"torch"}


def test_partitions_need_no_torch() -> None:
    assert modules_after("import fedge.workloads.partitions", "torch", "scipy", "sklearn") == set()


def test_an_unknown_task_lists_the_known_ones() -> None:
    for ask in (workloads.check_task, workloads.load_task):
        with pytest.raises(UnknownName, match=r"workload\.task: got 'digits'; known: .*digits-cnn, .*module:Class"):
            ask("digits")


def test_ones_own_task_gets_the_data_folder(own_module: str, tmp_path: Path) -> None:
    workloads.check_task(f"{own_module}:Mine")
    task = workloads.load_task(f"{own_module}:Mine", data_dir=tmp_path, download=False)
    assert task.given == (tmp_path, False)
    assert np.array_equal(task.labels, [0, 1])


def test_ones_own_task_without_its_methods_is_refused(own_module: str) -> None:
    with pytest.raises(BadInput, match="without buffers, initial_arrays, start; a learning task with"):
        workloads.load_task(f"{own_module}:Half")


def test_ones_own_task_that_takes_other_arguments_is_refused(own_module: str) -> None:
    with pytest.raises(BadInput, match=r"to be called as Class\(data_dir=, download=\)"):
        workloads.load_task(f"{own_module}:Odd")


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match=r"exp\.yaml: got 'no_such_module:Task'"):
        workloads.check_task("no_such_module:Task", where="exp.yaml")


def test_the_findings_say_where_each_data_set_belongs(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for file in workloads.data.SOURCES["mnist"].files:
        (folder / file).touch()
    found = {name: (here, where) for name, here, where in workloads.data_findings(tmp_path)}
    assert found["digits"] == (True, "inside scikit-learn")
    assert found["mnist"] == (True, str(folder))
    assert found["cifar10"] == (False, str(tmp_path / "cifar-10-batches-py"))
    assert set(found) == {"digits"} | {spec.dataset for spec in workloads.TASKS.values()}
