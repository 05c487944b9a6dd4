"""The process that waits and forks: nothing outlives who asked, and what fails falls back."""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from contracts.runners import READY, runners, waiting

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0
WAITS = """
import os, runpy, sys
ready = runpy.run_path({ready!r})
listener = ready["listen_at"]({path!r})
sys.stderr.write("waits at\\n")
ready["ForkServer"](listener, lambda: exec(os.environ["PROGRAM"], {{}}), {most}).serve()
"""
"""The process that waits, with a program out of the asker's environment in Flower's place."""
ASKS = """
import runpy, sys
sys.exit(runpy.run_path({ready!r})["run_in_fork"](sys.argv[1:], {path!r}, {own!r}))
"""
OWN = '#!/bin/sh\necho own "$@"\n'


class Place:
    """A folder with a process that waits, and stand-ins that ask it."""

    def __init__(self, folder: Path, server: subprocess.Popen[str]) -> None:
        self.folder, self.server = folder, server

    @property
    def path(self) -> str:
        return str(self.folder / "s")

    def asks(self, program: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        code = ASKS.format(ready=str(READY), path=self.path, own=str(self.folder / "own"))
        environment = os.environ | {"PROGRAM": program} | changes
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def said(self, program: str, *arguments: str, **changes: str) -> tuple[int, str]:
        asker = self.asks(program, *arguments, **changes)
        out, _ = asker.communicate("", timeout=LIMIT_S)
        return asker.returncode, out.strip()


@contextmanager
def _place(folder: Path, most: int = 8) -> Iterator[Place]:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "own").write_text(OWN, encoding="utf-8")
    (folder / "own").chmod(0o755)
    code = WAITS.format(ready=str(READY), path=str(folder / "s"), most=most)
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd="/") as server:
        assert server.stderr.readline() == "waits at\n"
        try:
            yield Place(folder, server)
        finally:
            server.terminate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with _place(tmp_path / "p") as found:
        yield found


def _until(happened: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < end_s, "it has not happened"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _number(asker: subprocess.Popen[str]) -> int:
    return int(asker.stdout.readline())


SHOWS = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ["MINE"], "OTHERS" in os.environ, sys.stdin.read(), os.getpid()]))
sys.exit(7)
"""
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_the_forked_process_has_the_askers_arguments_folder_environment_and_streams_and_gives_its_exit_code(
    place,
):
    asker = place.asks(SHOWS, "--token", "a b", "", MINE="ü=1")

    out, _ = asker.communicate("told", timeout=LIMIT_S)

    argv, folder, mine, others, stdin, pid = json.loads(out)
    assert asker.returncode == 7
    assert argv[1:] == ["--token", "a b", ""]
    assert Path(argv[0]).name == "flwr-clientapp"
    assert [folder, mine, others, stdin] == [str(place.folder), "ü=1", False, "told"]
    assert pid not in {asker.pid, place.server.pid}


def test_what_one_message_imports_and_draws_no_other_sees(place):
    program = (
        "import sys; print('mine' in sys.modules); sys.modules['mine'] = sys; import random; print(random.random())"
    )

    first, second = place.said(program)[1].split(), place.said(program)[1].split()

    assert first[0] == second[0] == "False"
    assert first[1] != second[1]


def test_a_signal_to_the_stand_in_is_for_the_process(place):
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" + SLEEPS
    asker = place.asks(program)
    _number(asker)

    asker.terminate()

    assert asker.wait(LIMIT_S) == 3


def test_the_process_and_its_helpers_end_with_a_stand_in_that_is_killed(place):
    program = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n" + SLEEPS
    asker = place.asks(program)
    numbers = [_number(asker), _number(asker)]

    asker.kill()

    _until(lambda: not any(map(_lives, numbers)))
    assert place.said("print('again')") == (0, "again")


def test_the_process_that_waits_outlives_a_process_that_is_killed_and_the_asker_hears_of_it(place):
    asker = place.asks(SLEEPS)

    os.kill(_number(asker), signal.SIGKILL)

    assert asker.wait(LIMIT_S) == 128 + signal.SIGKILL
    assert place.said("print('again')") == (0, "again")


def test_no_process_outlives_the_one_that_waits(place):
    asker = place.asks(SLEEPS)
    number = _number(asker)

    place.server.kill()

    assert asker.wait(LIMIT_S) == 1
    _until(lambda: not _lives(number))


def test_told_to_end_it_tells_its_processes_and_waits_for_them(place):
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" + SLEEPS
    asker = place.asks(program)
    _number(asker)

    place.server.terminate()

    assert asker.wait(LIMIT_S) == 3
    assert place.server.wait(LIMIT_S) == 0


def test_threads_and_exit_handlers_of_the_app_are_waited_for(place):
    program = """
import atexit, threading, time
atexit.register(print, "handled")
threading.Thread(target=lambda: (time.sleep(0.2), print("worked"))).start()
"""
    assert place.said(program) == (0, "worked\nhandled")


def test_an_app_that_raises_is_a_traceback_and_exit_code_1(place):
    asker = place.asks("raise ValueError('why')")

    _, errors = asker.communicate(timeout=LIMIT_S)

    assert asker.returncode == 1
    assert errors.endswith("ValueError: why\n")


def test_where_nobody_waits_it_is_flowers_own_program(tmp_path):
    with _place(tmp_path / "p") as gone:
        gone.server.kill()
        gone.server.wait()

        assert gone.said("print('forked')", "--token", "t") == (0, "own --token t")


def test_an_app_whose_packages_are_installed_for_it_is_started_by_flowers_own_program(place):
    option = "--allow-runtime-dependency-installation"

    assert place.said("print('forked')", option) == (0, f"own {option}")


def test_one_process_too_many_is_started_by_flowers_own_program(tmp_path):
    with _place(tmp_path / "p", most=1) as small:
        asker = small.asks(SLEEPS)
        _number(asker)

        assert small.said("print('forked')") == (0, "own")
        asker.kill()


def test_a_stand_in_whose_folder_is_gone_is_started_by_flowers_own_program(place):
    """Anything that hinders the forked process before it begins."""
    gone = place.folder / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r}); " + ASKS.format(
        ready=str(READY), path=place.path, own=str(place.folder / "own")
    ).strip().replace("\n", "; ")
    environment = os.environ | {"PROGRAM": "print('forked')"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "own\n")


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"FDR1\x01\0\0\0\xff\xff\xff\x7f", b"FDR1\x01\0\0\0\x04\0\0\0a\0b\0"]
)
def test_what_is_no_request_is_not_answered_and_hinders_nobody(place, said):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(place.path)
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        try:
            answer = stranger.recv(1)
        except ConnectionResetError:
            answer = b""

    assert answer == b""
    assert place.said("print('again')") == (0, "again")


def test_another_user_is_neither_served_nor_believed(place, monkeypatch):
    ready = runpy.run_path(str(READY))
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    assert ready["_hand_over"]([], place.path) is None


def test_it_waits_only_in_a_folder_of_its_users_own(tmp_path):
    tmp_path.chmod(0o755)
    command = [sys.executable, str(READY), "serve", "--socket", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "mode 0700" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_its_socket_is_its_users_own_and_a_second_one_does_not_take_it_away(place):
    done = subprocess.run(
        [sys.executable, str(READY), "serve", "--socket", place.path], capture_output=True, text=True, check=False
    )

    assert Path(place.path).stat().st_mode & 0o777 == 0o600
    assert (done.returncode, done.stderr) == (1, f"{place.path}: another process waits there\n")
    assert place.said("print('again')") == (0, "again")


def _lines(log: Path, text: str) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if text in line]


ANSWERS = """
import json, runpy, sys
ready = runpy.run_path({ready!r})
missing = ready["preimport"](ready["MODULES"])
before = set(sys.modules)
sys.path.insert(0, {root!r})
from clients.app import _compute_answer
from fedge.experiment import Experiment
from fedge.types import RoundGoal
from fedge.wire import RequestMessage as Ask
experiment = Experiment.model_validate({{
    "fleet": [{{"device": "orin-nano", "name": "board", "count": 1}}],
    "workload": {{"task": "digits-cnn", "local_epochs": 1}},
    "exploration": {{"probes": 1, "probe_s": 0.1}},
}})
goal = RoundGoal("balanced", 5, deadline_s=60.0)
for ask in (Ask("hello"), Ask("front", policy="balanced"), Ask("train", round=1, policy="balanced", goal=goal)):
    answer, _ = _compute_answer(experiment, {{"settings": {settings!r}}}, ask, None)
    assert answer.error is None, answer.error
new = {{name.partition(".")[0] for name in sys.modules if name not in before}}
print(json.dumps([missing, sorted(new)]))
"""


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("desk")
def test_a_real_boards_answer_imports_nothing_from_outside_fedge_that_is_not_there_already(tmp_path):
    pytest.importorskip("torch", reason="the worker trains with torch")
    pytest.importorskip("flwr", reason="the ClientApp is Flower's")
    from contracts.desk import desk

    with desk("orin-nano-jp6", tmp_path) as found:
        settings = tmp_path / "node.yaml"
        settings.write_text(json.dumps(found.settings.model_dump(mode="json")), encoding="utf-8")
        program = ANSWERS.format(ready=str(READY), root=str(ROOT), settings=str(settings))
        command = [sys.executable, "-P", "-c", program]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, cwd="/"
        )

    assert done.returncode == 0, done.stderr
    missing, new = json.loads(done.stdout.splitlines()[-1])
    assert missing == []
    assert set(new) - {"fedge", "clients"} == set()


EXPERIMENT = """
name: ready
seed: 1
rounds: 1
backend: fleet
fleet: [{{device: orin-nano, name: board, count: 1}}]
workload: {{task: digits-cnn, local_epochs: 1}}
exploration: {{probes: 1, probe_s: 0.1}}
superlink: {{address: "{address}", connect_timeout_s: 60}}
reply_timeout_s: 60
"""
APP = """
[project]
name = "{name}"
version = "1.0.0"
[tool.flwr.app]
publisher = "other"
[tool.flwr.app.components]
serverapp = "fedge.app:server"
clientapp = "fedge.app:client"
"""
CODE = """
import os, signal, sys, time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
import fedge
client = ClientApp()
server = ServerApp()
@client.query()
def answer(message, context):
    print("this is", fedge.NAME, "of", fedge.__file__, sorted(set(sys.modules) & {{"others"}}), flush=True)
    sys.modules["others"] = sys
    if fedge.NAME == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return Message(RecordDict(), reply_to=message)
@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    replies = grid.send_and_receive([Message(RecordDict(), nodes[0], "query")], timeout=120)
    print("answers:", [reply.error.reason if reply.has_error() else "well" for reply in replies], flush=True)
"""


def _played(folder: Path, address: str, name: str) -> str:
    """What the server of a small app said whose package is called fedge and knows ``name``."""
    from experiments.backends.run_processes import Launch, end_processes_on_exit, private_environment
    from experiments.backends.run_submission import open_serverapp_log, submit, write_connection
    from fedge.experiment import SuperlinkSpec

    place = folder / f"app-{name}"
    app, home = place / "app", place / ".flwr"
    (app / "fedge").mkdir(parents=True)
    home.mkdir()
    (app / "pyproject.toml").write_text(APP.format(name=name), encoding="utf-8")
    (app / "fedge" / "__init__.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    (app / "fedge" / "app.py").write_text(CODE.format(), encoding="utf-8")
    write_connection(home, SuperlinkSpec(address=address))
    (home / "none.toml").write_text("", encoding="utf-8")
    launch = Launch(app, home, place / "logs", private_environment(os.environ, place), lambda: None)
    with end_processes_on_exit(launch):
        submit(launch, open_serverapp_log(launch), home / "none.toml", [], check=lambda: None)
    return open_serverapp_log(launch).path.read_text(encoding="utf-8")


def _begun(folder: Path) -> int:
    return len(_lines(folder / "runners" / "board-1-ready" / "log", "begins"))


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.xdist_group("fleet")
def test_messages_of_a_real_fleet_go_through_forked_processes_each_with_the_code_of_its_own_app(tmp_path):
    pytest.importorskip("torch", reason="the worker trains with torch")
    pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
    from contracts.loopback_fleet import loopback_fleet

    experiment, log = tmp_path / "exp.yaml", tmp_path / "runners" / "board-1" / "log"
    with (
        loopback_fleet(["orin-nano-jp6"], tmp_path, "process") as fleet,
        runners(fleet.runtimes, tmp_path / "runners", ready=True),
    ):
        experiment.write_text(EXPERIMENT.format(address=fleet.address), encoding="utf-8")
        done = _run_fedge(experiment, tmp_path / "run")
        of_round = _begun(tmp_path)
        answers = {name: _played(tmp_path, fleet.address, name) for name in ("one", "two", "killed")}

    assert done.returncode == 0, done.stderr + done.stdout
    assert of_round >= 3, "a front, a round, and the end"
    assert _begun(tmp_path) == of_round + 3
    assert len(_lines(log, "Start `flwr-clientapp` process")) == of_round + 3
    for name in ("one", "two", "killed"):
        [line] = _lines(log, f"this is {name} of")
        assert f"/apps/other.{name}.1.0.0." in line, "the app's own package, not one that was there before"
        assert line.endswith("[]")
    assert "answers: ['well']" in answers["one"]
    assert "answers: ['well']" in answers["two"]
    assert "ClientApp stopped responding" in answers["killed"]


def _run_fedge(experiment: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "experiments.cli.main",
        "run",
        str(experiment),
        "--folder",
        str(out),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=400)


@pytest.mark.fleet
@pytest.mark.slow
def test_flowers_own_program_starts_beside_the_environments_python_where_nobody_waits(tmp_path):
    pytest.importorskip("flwr", reason="the program is Flower's")
    with waiting(tmp_path / "p") as (changes, process):
        stand_in = changes["PATH"].partition(os.pathsep)[0] + "/flwr-clientapp"
        forked = subprocess.run(
            [stand_in, "--help"], env=os.environ | changes, capture_output=True, text=True, check=False
        )
        process.kill()
        process.wait()
        own = subprocess.run(
            [stand_in, "--help"], env=os.environ | changes, capture_output=True, text=True, check=False
        )

    assert forked.returncode == own.returncode == 0
    assert forked.stdout == own.stdout
    assert "usage: flwr-clientapp" in own.stdout
    assert len(_lines(tmp_path / "p" / "log", "begins")) == 1
