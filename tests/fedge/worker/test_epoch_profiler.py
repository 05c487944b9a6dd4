"""The measuring program: what each part of a minibatch is, that the parts add up, and one line for every failure."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("PIL.Image", reason="needs Pillow")

from fedge.worker import epoch_profiler, generated_images  # noqa: E402  torch first
from fedge.worker import page_cache as host  # noqa: E402
from fedge.worker import step_timers as steps  # noqa: E402
from fedge.worker.builtin_tasks import make_network  # noqa: E402
from fedge.worker.refusal import Refusal  # noqa: E402
from fedge.worker.task_shape import BadTask  # noqa: E402

SHAPE = (3, 16, 16)
NAMES = ("fetch_s", "preprocess_s", "copy_s", "compute_s", "overhead_s")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, wanted = tmp_path_factory.mktemp("storage"), generated_images.ImageSetSpec(32, 40, 30)
    return str(generated_images.make_images(str(place), wanted))


@pytest.fixture(autouse=True)
def _own_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def spec_of(folder, **fields):
    given = {"model": "digits-cnn", "shape": list(SHAPE), "classes": 10, "images": 32, "batch_size": 8}
    return dict(given, data={"folder": folder}, **fields)


def ran(tmp_path, capsys, spec):
    """Exit code, the last line, and the arrays if there are any."""
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    out = tmp_path / "out.npz"
    code = epoch_profiler.main([str(tmp_path / "spec.json"), str(out)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, lines, dict(np.load(str(out))) if out.exists() else None


class Slow:
    """A data set whose samples take known times: 2 ms to fetch, 3 ms to preprocess."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        begun_s = steps.now_s()
        time.sleep(0.002)
        fetched_s = steps.now_s()
        time.sleep(0.003)
        return torch.zeros(SHAPE), i % 2, begun_s, fetched_s, steps.now_s()


def slow_epoch(workers, compute_s):
    """Notes of four minibatches of four slow samples."""

    def work(images, labels):
        time.sleep(compute_s)
        return torch.zeros(()), torch.zeros(len(images), 2)

    notes = epoch_profiler.StepTimeTable(4)
    batches = steps.plan_batches(16, 4, None, 0, 0)
    loader = steps.make_loader(Slow(), steps.TimedLoaderSettings(4, workers), batches)
    begun_s, started_s, ended_s, rest = epoch_profiler.run_epoch(loader, steps.time_on_host(work), notes, 0, workers)
    steps.drain_iterator(rest)
    return notes.to_arrays(), begun_s, started_s, ended_s


def test_without_workers_the_stall_is_the_making_and_the_parts_add_up_to_the_epoch():
    found, begun_s, _, ended_s = slow_epoch(0, 0.01)
    assert (found["fetch_s"] >= 0.008).all()
    assert (found["preprocess_s"] >= 0.012).all()
    assert (found["compute_s"] >= 0.01).all()
    assert found["stall_s"] == pytest.approx(found["fetch_s"] + found["preprocess_s"])
    assert sum(found[name].sum() for name in NAMES) == pytest.approx(ended_s - begun_s, rel=0.05)
    assert found["step_s"].sum() == pytest.approx(ended_s - begun_s, rel=1e-6)
    assert found["start_s"][0] == begun_s


def test_with_workers_the_stall_ends_when_the_batch_was_made_and_the_rest_is_taking_it_over():
    found, begun_s, started_s, ended_s = slow_epoch(2, 0.05)
    assert begun_s < started_s < ended_s
    assert found["stall_s"][0] >= 0.02  # the first batch is waited for, from the workers' start on
    assert found["stall_s"][2:] == pytest.approx(0.0)  # later ones were made meanwhile
    assert (found["taking_s"][2:] > 0).all()
    assert (found["overhead_s"] >= found["taking_s"]).all()
    parts = ("stall_s", "copy_s", "compute_s", "overhead_s")
    assert sum(found[name].sum() for name in parts) == pytest.approx(ended_s - begun_s, rel=0.05)
    assert (found["fetch_s"] + found["preprocess_s"] >= 0.02).all()  # though nobody waited for them


def test_files_are_measured_in_training_and_inference(tmp_path, capsys, folder):
    for kind in ("train", "infer"):
        code, lines, found = ran(tmp_path, capsys, spec_of(folder, kind=kind, epochs=2, minibatches=3, workers=0))
        assert code == 0
        assert lines[-1] == {"done": 6}
        assert lines[0]["device"] in ("cpu", torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
        assert list(found["epoch"]) == [0, 0, 0, 1, 1, 1]
        assert list(found["step"]) == [0, 1, 2, 0, 1, 2]
        assert all((found[name] > 0).all() for name in ("fetch_s", "preprocess_s", "compute_s", "overhead_s"))
        assert (found["resident_after"] > 0.9).all()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "spec.json"]
        (tmp_path / "out.npz").unlink()


def test_an_array_in_memory_is_measured(tmp_path, capsys):
    wanted = generated_images.ImageSetSpec(40, 28, 28, 1, in_memory=True)
    place = generated_images.make_images(str(tmp_path), wanted)
    spec = spec_of(None, model="mnist-lenet5", shape=[1, 28, 28], images=40, workers=1)
    code, _, found = ran(tmp_path, capsys, dict(spec, data={"array": str(place / generated_images.ARRAY)}))
    assert code == 0
    assert len(found["step"]) == 5
    assert np.isnan(found["resident_before"]).all()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "nonsense"}, "a network of torchvision's, module:function, or one of digits-cnn"),
        ({"model": "yolov8n-coco"}, "AGPL"),
        ({"model": "no.such:thing"}, "ModuleNotFoundError"),
        ({"model": "os:getpid"}, "TypeError"),
        ({"model": "resnet18", "shape": [3, 16, 24]}, "a square input"),
        ({"model": "mobilenet_v3_small", "shape": [1, 32, 32]}, "3 channels"),
        ({"data": {"folder": "/no/such/folder"}}, "no such folder"),
        ({"images": 33}, "got 32 images; at least the 33"),
        ({"batch_size": 64}, "at most the 32 images"),
        ({"kind": "test"}, "train or infer"),
        ({"epochs": 0}, "count below 1"),
        ({"surprise": 1}, "got surprise; the fields model, shape"),
        ({"device": "cuda:99"}, "CUDA device"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_the_reason(tmp_path, capsys, folder, changed, reason):
    if changed.get("model") == "mobilenet_v3_small":
        pytest.importorskip("torchvision")
    code, lines, found = ran(tmp_path, capsys, dict(spec_of(folder), **changed))
    if "device" in changed and torch.cuda.is_available():
        reason = "cuda:0"
    assert code == 1
    assert reason in lines[-1]["failed"]
    assert found is None


def test_a_broken_image_is_named_whoever_loads_it(tmp_path, capsys):
    (tmp_path / "own/cat").mkdir(parents=True)
    for k in range(4):
        (tmp_path / "own/cat" / "{}.jpg".format(k)).write_bytes(b"no image at all")
    for workers in (0, 1):
        code, lines, _ = ran(tmp_path, capsys, spec_of(str(tmp_path / "own"), images=4, batch_size=2, workers=workers))
        assert code == 1
        assert "a file that cannot be read" in lines[-1]["failed"]
        assert ".jpg" in lines[-1]["failed"]


def test_too_many_classes_for_the_network_are_refused(tmp_path, capsys, folder):
    marker = Path(folder) / generated_images.COMPLETE
    marker.unlink()  # then it counts as the user's own
    try:
        code, lines, _ = ran(tmp_path, capsys, spec_of(folder, classes=3))
    finally:
        marker.write_text("{}")
    assert code == 1
    assert "got 8 classes; the 3 that the network scores" in lines[-1]["failed"]


def test_started_as_a_file_it_takes_nothing_from_the_packages_that_lie_beside_fedge(tmp_path):
    worker = Path(epoch_profiler.__file__).parent
    shutil.copytree(str(worker), str(tmp_path / "fedge/worker"), ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("numpy.py", "fedge/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit('of another Python')")
    command = [sys.executable, str(tmp_path / "fedge/worker/epoch_profiler.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(tmp_path / "fedge"))
    said = process.communicate(timeout=60)[0]
    assert json.loads(said.decode()) == {"failed": "usage: epoch_profiler.py SPEC.json OUT.npz"}
    assert process.returncode == 1


def test_a_lack_of_memory_is_called_so():
    assert epoch_profiler.describe_failure(MemoryError()).startswith("out of memory: the machine has no more")
    said = epoch_profiler.describe_failure(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert said.startswith("out of memory")
    assert epoch_profiler.describe_failure(ValueError("a\nb")) == "ValueError: b"


def test_an_epochs_batches_are_shuffled_anew_whole_and_cut_where_asked():
    first, second = (steps.plan_batches(35, 8, None, 7, epoch) for epoch in (0, 1))
    assert first != second
    assert first == steps.plan_batches(35, 8, None, 7, 0)
    assert [len(batch) for batch in first] == [8, 8, 8, 8]
    assert len({i for batch in first for i in batch}) == 32
    assert steps.plan_batches(35, 8, 2, 7, 0) == first[:2]


def test_an_image_becomes_what_torchvision_would_make_of_it(folder):
    try:
        from fedge.worker import torchvision_shim  # noqa: F401  it makes torchvision importable
    except BadTask:
        pytest.skip("torchvision does not fit this torch")
    from PIL import Image
    from torchvision import transforms

    path, _ = generated_images.list_image_files(folder)[0]
    usual = [transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize(steps.MEAN, steps.SD)]
    mine = steps.ImageTransform(SHAPE).decode(Path(path).read_bytes())
    assert torch.allclose(mine, transforms.Compose(usual)(Image.open(path)), atol=1e-6)


def test_the_users_function_makes_the_network(tmp_path, monkeypatch):
    (tmp_path / "my_own_net.py").write_text(
        "from torch import nn\ndef model(shape):\n    return nn.Linear(shape.side, shape.classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_network("my_own_net:model", SHAPE, 7).out_features == 7
    with pytest.raises(Refusal, match="which is no function"):
        make_network("my_own_net:nn", SHAPE, 7)


def test_on_a_gpu_copying_and_computing_are_the_events_times(monkeypatch):
    class Event:
        """Stands for a CUDA event: its moment on the device is when it is recorded."""

        def __init__(self, enable_timing):
            assert enable_timing
            self.at_s = None

        def record(self):
            self.at_s = steps.now_s()

        def synchronize(self):
            time.sleep(0.002)  # the device is not done yet

        def elapsed_time(self, later):
            return 1e3 * (later.at_s - self.at_s)

    def work(images, labels):
        time.sleep(0.003)
        return torch.zeros(()), torch.zeros(len(images), 2)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    begun_s = steps.now_s()
    did = steps.time_on_cuda(work, torch.device("cpu"))(torch.zeros(4, *SHAPE), torch.zeros(4, dtype=torch.int64))
    assert did.compute_s >= 0.003
    assert did.copy_s >= 0
    assert did.done_s - begun_s >= did.copy_s + did.compute_s + 0.002


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_measured_with_page_locked_batches(tmp_path, capsys, folder):
    code, lines, found = ran(tmp_path, capsys, spec_of(folder, device="cuda", pinned=True, workers=2, epochs=2))
    assert code == 0, lines
    assert (found["copy_s"] > 0).all()
    late = found["epoch"] == 1
    parts = sum(found[name][late].sum() for name in ("stall_s", "copy_s", "compute_s", "overhead_s"))
    assert parts == pytest.approx(found["step_s"][late].sum(), rel=0.1)


def test_a_disks_bytes_are_found_by_its_numbers():
    lines = [" 254       0 vda 10 0 100 0 0 0 0", " 254       1 vda1 10 0 7 0 0 0 0"]
    assert host.parse_disk_read_bytes("254:0", lines) == 100 * 512
    assert host.parse_disk_read_bytes("254:1", lines) == 7 * 512
    assert host.parse_disk_read_bytes("8:0", lines) is None
