"""Tasks by name: fedge's own and the user's, found without torch, with clear words for what is wrong."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedge import workloads
from fedge.errors import BadInput, UnknownName
from fedge.experiment import DataSpec, Experiment, FleetEntry, WorkloadSpec
from fedge.types import TrainOptions
from fedge.worker import sources
from fedge.workloads import NULL_SAMPLES, NULL_TASK, NullTask, check_task, load_experiment_task

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


TASK_FILE = """
from torch import nn

def model(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.channels * shape.side ** 2, shape.classes))
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_task.py"
    path.write_text(TASK_FILE, encoding="utf-8")
    return path


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


def test_importing_and_checking_load_neither_torch_nor_numpy():
    program = "from fedge import workloads; workloads.check_task('cifar10-resnet18'); workloads.find_datasets()"
    assert modules_after(program, "torch", "torchvision", "sklearn", "numpy") == set()


def test_the_digits_need_neither_torchvision_nor_scikit_learn_nor_torchs_compiler():
    program = (
        "import numpy as np; from fedge.types import TrainOptions; from fedge.workloads import load_task\n"
        "task = load_task('digits-cnn'); task.train(task.initial_arrays(0), np.arange(20), 0, TrainOptions(1, 4, 0.1))"
    )
    assert modules_after(program, "torch", "torchvision", "sklearn", "torch._dynamo") == {"torch"}


def test_partitions_need_no_torch():
    assert modules_after("import fedge.workloads.partitions", "torch", "scipy", "sklearn") == set()


def test_ones_own_task_gets_the_data_folder(own_module, tmp_path):
    workloads.check_task(f"{own_module}:Mine")
    task = workloads.load_task(f"{own_module}:Mine", data_dir=tmp_path, download=False)
    assert task.given == (tmp_path, False)
    assert np.array_equal(task.labels, [0, 1])


def test_ones_own_task_without_its_methods_is_refused(own_module):
    with pytest.raises(BadInput, match="without buffers, initial_arrays, start; a learning task with"):
        workloads.load_task(f"{own_module}:Half")


def test_ones_own_task_that_takes_other_arguments_is_refused(own_module):
    with pytest.raises(BadInput, match=r"to be called as Class\(data_dir=, download=\)"):
        workloads.load_task(f"{own_module}:Odd")


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match=r"exp\.yaml: got 'no_such_module:Task'"):
        workloads.check_task("no_such_module:Task", where="exp.yaml")


def test_the_findings_say_where_each_data_set_belongs(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for file in workloads.datasets.SOURCES["mnist"].files:
        (folder / file).touch()
    found = {name: (here, where) for name, here, where in workloads.find_datasets(tmp_path)}
    assert found["digits"] == (True, "inside scikit-learn")
    assert found["mnist"] == (True, str(folder))
    assert found["cifar10"] == (False, str(tmp_path / "cifar-10-batches-py"))
    assert set(found) == {"digits"} | {spec.dataset for spec in workloads.TASKS.values()}


def test_a_task_file_is_trained_on_the_users_arrays(own_file, tmp_path):
    images = sources.make_synthetic(40, 1, 6, 3)
    sources.write_file(tmp_path / "mine.npz", images)
    workloads.check_task(str(own_file))

    task = workloads.load_task(str(own_file), data_dir=tmp_path / "mine.npz")
    trained = task.train(task.initial_arrays(0), np.arange(40), 0, TrainOptions(3, 8, 0.01))

    assert np.array_equal(task.labels, images.train_y)
    assert [array.shape for array in trained.arrays.values()] == [(3, 36), (3,)]


def test_a_task_files_data_may_be_a_folder_of_arrays(own_file, tmp_path):
    for name, array in zip(sources.ARRAY_NAMES, sources.make_synthetic(40, 1, 6, 3)[:4], strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    assert len(workloads.load_task(str(own_file), data_dir=tmp_path).labels) == 40


@pytest.mark.parametrize("name", [None, "somewhere"])
def test_a_task_file_may_read_its_data_itself(own_file, tmp_path, name):
    folder = None if name is None else str(tmp_path / name)
    if folder is not None:
        Path(folder).mkdir()
    own_file.write_text(
        f"{TASK_FILE}\nfrom fedge.worker.sources import make_synthetic as synthetic\n"
        f"def data(source):\n    assert source == { ({} if folder is None else {'folder': folder})!r}\n"
        "    return synthetic(30, 1, 6, 3)\n"
    )
    assert len(workloads.load_task(str(own_file), data_dir=folder).labels) == 30


def test_a_task_file_without_data_is_refused(own_file, tmp_path):
    with pytest.raises(
        BadInput, match=r"data\.dir: got nothing; an \.npz file or a folder .* or a function data\(source"
    ):
        workloads.load_task(str(own_file))
    with pytest.raises(BadInput, match=r"got a folder without images; train_x.npy"):
        workloads.load_task(str(own_file), data_dir=tmp_path)


def test_an_absent_task_file_is_refused_before_anything_is_loaded(tmp_path):
    for ask in (workloads.check_task, workloads.load_task):
        with pytest.raises(BadInput, match=r"workload\.task: got '.*no\.py'; the path of a Python file that defines"):
            ask(str(tmp_path / "no.py"))


def test_a_mistake_in_a_task_file_is_told_with_its_line(own_file, tmp_path):
    sources.write_file(tmp_path / "mine.npz", sources.make_synthetic(40, 1, 6, 3))
    own_file.write_text(TASK_FILE.replace("shape.classes", "shape.width"))
    with pytest.raises(BadInput, match=r"my_task\.py, line 5: got AttributeError from model\(shape\)"):
        workloads.load_task(str(own_file), data_dir=tmp_path / "mine.npz")
    own_file.write_text(TASK_FILE + "def loss(scores, labels):\n    return scores.no\n")
    task = workloads.load_task(str(own_file), data_dir=tmp_path / "mine.npz")
    training = task.start(task.initial_arrays(0), np.arange(40), 0, TrainOptions(3, 8, 0.01))
    with pytest.raises(BadInput, match=r"line 7: got AttributeError from loss\(scores, labels\)"):
        training.advance(1)


def test_checking_a_task_file_loads_no_torch(own_file):
    program = f"from fedge import workloads; workloads.check_task({str(own_file)!r})"
    assert modules_after(program, "torch", "numpy") == set()


def test_nothing_is_learnt_from_nothing():
    task = NullTask()
    arrays = task.initial_arrays(1)
    training = task.start(arrays, np.arange(3), 1, TrainOptions(1, 1, 0.1))
    training.advance(5)

    assert training.result().arrays is arrays
    assert math.isnan(training.result().loss)
    assert task.evaluate(arrays) is None


@pytest.mark.parametrize(("samples", "count"), [(None, NULL_SAMPLES), (7, 7)])
def test_an_experiment_names_it_and_its_samples(samples, count):
    experiment = Experiment(
        fleet=(FleetEntry(device="nano"),), workload=WorkloadSpec(task=NULL_TASK), data=DataSpec(samples=samples)
    )

    assert len(load_experiment_task(experiment).labels) == count


def test_it_is_known_by_name():
    check_task(NULL_TASK)
    with pytest.raises(UnknownName, match=NULL_TASK):
        check_task("nonne")
