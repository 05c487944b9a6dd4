"""``fedge concurrent run`` trains and serves for real, tells how both fared, and leaves no process behind."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from contracts.launching import FEDGE, Launcher
from contracts.processes import wait_for

from fedge.serving.private_workers import WorkerSettings, start_workers
from fedge.serving.side_by_side import SERVICE

SMALL = [
    "--train-task",
    "digits-cnn",
    "--infer-task",
    "digits-cnn",
    "--rate-hz",
    "40",
    "--max-latency-s",
    "2",
    "--threads",
    "1",
]


def run(fedge: Launcher, *more: str | Path):
    return fedge("concurrent", "run", *more)


# A user's mistake is one line, and nothing is started -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--train-task", "nope"], "--train-task: got 'nope'; known: digits-cnn"),
        (["--infer-task", "yolov8n-coco"], "--infer-task: got 'yolov8n-coco'; another one: torchvision lacks it"),
        (["--how", "fast"], "--how: got 'fast'; known: managed, native, alone, both"),
        (["--arrivals", "never"], "--arrivals: got 'never'; known: constant"),
        (["--device", "tpu"], "--device: got 'tpu'; did you mean cpu? known: auto, cpu, cuda"),
        (["--rate-hz", "0"], "--rate-hz: got 0; a number above 0"),
        (["--rate-hz", "1e9"], "--rate-hz: got 1e+09; more than 0 and at most 10000"),
        (["--seconds", "nan"], "--seconds: got nan; a number above 0"),
        (["--seconds", "inf"], "--seconds: got inf; a number above 0"),
        (["--max-latency-s", "nan"], "--max-latency-s: got nan; a number above 0"),
        (["--max-latency-s", "1e300"], "--max-latency-s: got 1e+300; more than 0 and at most 1000 s"),
        (["--infer-batch-size", "100000"], "--infer-batch-size: got 100000; from 1 to 1024"),
        (["--how", "native", "--worker-socket", "w.sock"], "--how: got native with --worker-socket; managed or alone"),
        (["--threads", "1", "--worker-socket", "w.sock"], "--threads: got 1 with --worker-socket"),
        (["--worker-socket", "no-such.sock"], "--worker-socket: got no-such.sock; no-such.sock: no such socket"),
    ],
)
def test_a_mistake_is_one_line(fedge, options, said):
    done = run(fedge, *options)

    assert done.code == 2
    assert done.message.startswith(f"fedge: {said}")


# Really executed ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_managed_and_native_are_executed_and_written_down(fedge, tmp_path):
    out = tmp_path / "out.json"

    done = run(fedge, *SMALL, "--rate-hz", "200", "--how", "both", "--seconds", "1", "--out", out)

    assert done.code == 0, done.err
    assert "measured: a training step" in done.out
    data = json.loads(out.read_text())
    assert data["interrupted"] is False
    assert [one["how"] for one in data["outcomes"]] == ["managed", "native"]
    for one in data["outcomes"]:
        service = one["service"]
        assert one["minibatches"] > 0
        assert 0.9 <= one["seconds"] < 3.0
        assert service["requests"] == service["served"] + service["dropped"] + service["waiting"]
        assert service["served"] > 0
        assert 0.0 < one["p50_s"] <= one["p99_s"]


@pytest.mark.slow
def test_training_alone_serves_nothing_and_quiet_leaves_the_result_only(fedge, tmp_path):
    out = tmp_path / "out.json"
    out.write_text('{\n  "concurrent_run": {}\n}\n')

    done = fedge("--quiet", "concurrent", "run", *SMALL, "--how", "alone", "--seconds", "0.5", "--out", out)

    assert done.code == 0, done.err
    assert "alone" in done.out
    assert "serving" not in done.out
    assert "measured:" not in done.out
    assert done.err == ""
    assert [one["how"] for one in json.loads(out.read_text())["outcomes"]] == ["alone"], (
        "the earlier result is replaced"
    )


@pytest.mark.slow
def test_a_budget_that_no_batch_size_holds_is_refused_with_one_that_would_be(fedge):
    done = run(fedge, *SMALL, "--max-latency-s", "0.0001")

    assert done.code == 2
    assert "which no batch size holds here" in done.message
    assert "s or more" in done.message


@pytest.mark.slow
def test_a_worker_that_runs_already_is_used_and_left_as_it_was(fedge, tmp_path):
    out = tmp_path / "out.json"
    with start_workers((WorkerSettings("board", "cpu", threads=1),)) as clients:
        client = clients["board"]
        path = client._path

        done = run(
            fedge, *SMALL[:-2], "--worker-socket", path, "--seconds", "0.5", "--infer-batch-size", "2", "--out", out
        )

        assert done.code == 0, done.err
        assert json.loads(out.read_text())["concurrent_run"]["infer_batch_size"] == 2
        assert SERVICE not in client.status()["services"]
        assert client.status()["state"] == "idle"


def begun(tmp_path: Path) -> subprocess.Popen[str]:
    """A long run, once it has told of its first seconds."""
    command = [*FEDGE, "concurrent", "run", *SMALL, "--infer-batch-size", "4"]
    process = subprocess.Popen(
        [*command, "--seconds", "600", "--out", str(tmp_path / "out.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env=dict(os.environ, PYTHONUNBUFFERED="1", TMPDIR=str(tmp_path)),
    )
    assert process.stdout is not None
    while "managed" not in process.stdout.readline():
        assert process.poll() is None, process.stderr and process.stderr.read()
    return process


def workers_of(tmp_path: Path) -> list[int]:
    """Processes with a socket in this test's folder on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if any(word.startswith(f"{tmp_path}/fedge-") for word in words):
            found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_ctrl_c_gives_the_result_so_far_and_leaves_no_process(tmp_path):
    process = begun(tmp_path)
    assert workers_of(tmp_path)

    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert "latency budget" in out
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["interrupted"] is True
    assert data["outcomes"][0]["minibatches"] > 0
    wait_for(lambda: not workers_of(tmp_path), "its workers ended", 15.0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_it_is_ended(tmp_path, number):
    process = begun(tmp_path)
    assert workers_of(tmp_path)

    process.send_signal(number)
    process.communicate(timeout=60)

    assert process.returncode != 0
    wait_for(lambda: not workers_of(tmp_path), "its workers ended", 15.0)


@pytest.mark.slow
def test_a_worker_that_dies_is_told_with_the_result_so_far(tmp_path):
    process = begun(tmp_path)
    supervisor = workers_of(tmp_path)[0]
    trainer = int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0])
    out = tmp_path / "out.json"
    process.stdout.readline()

    os.kill(trainer, signal.SIGKILL)
    shown, err = process.communicate(timeout=60)

    assert process.returncode == 1
    lines = [line for line in err.splitlines() if not line.startswith("fedge: concurrent run, ")]  # signs of life
    assert [line.startswith("fedge: the worker: died: ") for line in lines] == [True]
    assert "latency budget" in shown
    assert json.loads(out.read_text())["interrupted"] is True
