"""Instances as processes: started together, timed, none left behind when one fails; torch and ONNX Runtime for real."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedge.analysis.placement import placement_runs
from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.inference_jobs import (
    BatchJob,
    InstanceTask,
    ModelSource,
    detect_libraries,
    list_runtimes,
    prepare_model_source,
)
from fedge.analysis.placement.placement_runs import measure_placement, run_instances, time_batches
from fedge.errors import BadInput, RunFailed, SensorLost

SOURCE = ModelSource("digits-cnn", (1, 8, 8), {})


def task(name: str) -> InstanceTask:
    return InstanceTask(Instance(name, 4, "fp32"), "torch", SOURCE)


def sleeping(given: InstanceTask) -> BatchJob:
    return lambda: time.sleep(0.01)


def slow_to_start_and_end(given: InstanceTask) -> BatchJob:
    time.sleep(1.0)
    threading.Thread(target=time.sleep, args=(2.0,)).start()  # the process ends with its last thread
    return sleeping(given)


def failing(given: InstanceTask) -> BatchJob:
    if given.instance.accelerator == "bad":
        raise ValueError("no such\nkernel")
    return sleeping(given)


def refusing(given: InstanceTask) -> BatchJob:
    raise BadInput("--batch-sizes", "3", "4")


def dying(given: InstanceTask) -> BatchJob:
    os._exit(9)


def test_batches_are_counted_until_the_time_is_over_and_the_last_one_counts_whole():
    times = iter([0.0, 0.4, 0.8, 1.3])
    ran = time_batches(lambda: None, 1.0, lambda: next(times))
    assert (ran.batches, ran.seconds) == (3, 1.3)
    assert ran.median_s == pytest.approx(0.4)
    assert ran.batches_per_s == pytest.approx(3 / 1.3)


@pytest.mark.slow
def test_two_instances_run_at_the_same_time():
    ran = run_instances([task("a"), task("b")], 0.5, sleeping)
    assert len(ran) == 2
    assert all(5 <= one.batches <= 50 and 0.5 <= one.seconds < 2.0 for one in ran)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_what_is_measured_beside_the_runs_is_neither_their_start_nor_their_end():
    span_s: list[float] = []

    @contextmanager
    def timing() -> Iterator[None]:
        begin_s = time.monotonic()
        yield
        span_s.append(time.monotonic() - begin_s)

    begin_s = time.monotonic()
    run_instances([task("a")], 0.2, slow_to_start_and_end, timing())

    assert 0.2 <= span_s[0] < time.monotonic() - begin_s - 1.5


def test_power_since_the_reading_before_the_runs_is_not_that_of_the_runs(monkeypatch):
    """A sensor of counted energy gives the mean power since its last reading."""
    monkeypatch.setattr(placement_runs, "POWER_SAMPLE_S", 1e-3)
    read: list[float] = []
    watts, enough = iter([100.0]), threading.Event()

    def read_w() -> float:
        if len(read) == 3:
            enough.set()
        return next(watts, 10.0)

    with placement_runs._sample_power(read_w, read):
        assert enough.wait(10.0)

    assert set(read) == {10.0}


def test_a_run_shorter_than_the_period_of_power_samples_has_one():
    read: list[float] = []
    with placement_runs._sample_power(lambda: 10.0, read):
        pass

    assert read == [10.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "error", "told"),
    [
        (failing, RunFailed, "ValueError: no such kernel"),
        (refusing, BadInput, "--batch-sizes"),
        (dying, RunFailed, "ended with code 9"),
    ],
)
def test_one_that_fails_ends_all_and_says_why(build, error, told):
    with pytest.raises(error, match=told):
        run_instances([task("good"), task("bad")], 0.2, build)
    for process in multiprocessing.active_children():
        process.join(timeout=10)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch-cpu", "ort-cpu"])
def test_a_small_network_really_runs_on_this_machines_processor(name, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    source = prepare_model_source("digits-cnn", (1, 8, 8), [2], tmp_path if name == "ort-cpu" else None)
    read = iter(range(10_000))
    run = measure_placement(
        Placement((Instance(name, 2, "fp32"),)),
        list_runtimes(detect_libraries()),
        source,
        0.5,
        read_w=lambda: float(next(read) * 0 + 7),
    )
    assert run.measurement.images_per_s > 10
    assert run.measurement.watts == pytest.approx(7.0)
    assert run.instance_runs[0].median_s > 0


@pytest.mark.parametrize("readings", [0, 1, 3])
def test_a_sensor_that_is_lost_during_a_placement_leaves_it_without_power(monkeypatch, caplog, readings):
    monkeypatch.setattr(placement_runs, "POWER_SAMPLE_S", 0.001)
    read: list[float] = []
    answers = iter([7.0] * readings)

    def read_w() -> float:
        try:
            return next(answers)
        except StopIteration:
            raise SensorLost("the rail is gone") from None

    with placement_runs._sample_power(read_w, read):
        ends_s = time.monotonic() + 30
        while "without its power: the rail is gone" not in caplog.text and time.monotonic() < ends_s:
            time.sleep(0.01)

    assert read == []


def test_a_sensor_that_is_lost_at_the_end_of_a_placement_shorter_than_a_sample_fails_nothing(monkeypatch):
    monkeypatch.setattr(placement_runs, "POWER_SAMPLE_S", 60.0)
    read: list[float] = []
    answers = iter([7.0])

    def read_w() -> float:
        for watts in answers:
            return watts
        raise SensorLost("the rail is gone")

    with placement_runs._sample_power(read_w, read):
        pass

    assert read == []


def test_costs_alone_cannot_run():
    with pytest.raises(BadInput, match="costs alone"):
        prepare_model_source("layers.json", (1, 8, 8), [1], None)


def test_a_file_is_its_own_source_for_every_batch_size():
    assert dict(prepare_model_source("net.onnx", (1, 8, 8), [1, 4], None).files) == {1: "net.onnx", 4: "net.onnx"}
