"""Plain ``flwr run`` runs the quickstart in this repository, and the example app; their rows are those of a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the example trains with torch")

from contracts.processes import program
from flwr.app import Context, Message, RecordDict

import clients.app
from experiments.backends import launcher
from experiments.backends.plain_flower_app import EmulatingNodes, load_run_config
from experiments.backends.run_processes import RUN_MARK, find_marked_processes
from experiments.backends.sim_backend import find_free_port, simulation_environment
from experiments.report.run.loaded_runs import load_run
from experiments.spec.experiment_loader import load_experiment
from fedge.clock import SimulatedClock
from fedge.errors import BadInput
from fedge.experiment import Experiment
from fedge.flower.messages import ensure_identity
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.wire import ReplyMessage, RequestMessage
from server.transport.client_port import OutgoingRequest
from server.transport.grid_port import REJECTED_TEXT

# Ray is not imported here: it reads the tokens of private sessions, which other tests start, only once per process.
NODES, ROUNDS, RUN_LIMIT_S = 2, 2, 1200
QUICKSTART = Path("experiments/configs/quickstart.yaml")
EXPERIMENT = Experiment.model_validate({"fleet": [{"device": "nano", "count": 3}]})


class AnsweringGrid:
    """Two nodes, each of which answers at once with the ClientApp, except for the silent one.

    Pushes of more than ``most`` messages are refused as a whole, as are the messages of the places ``refused``.
    """

    def __init__(self, silent: int | None = None, most: int = 9, refused: tuple[int, ...] = ()) -> None:
        self._silent, self._most, self._refused = silent, most, refused
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return [7, 5]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids, pushed = list[str](), list(messages)
        for i, message in enumerate(pushed if len(pushed) <= self._most else ()):
            if i in self._refused:
                ids.append("")
                continue
            ids.append(f"message-{i}")
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's own grids do
            if (node := message.metadata.dst_node_id) != self._silent:
                context = Context(
                    1, node, {"partition-id": 0}, RecordDict(), {"experiment": "a path", "folder": "runs/mine"}
                )
                self._replies[ids[-1]] = clients.app.app(message, context)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(each) for each in ids if each in self._replies]


def ask_names(grid: AnsweringGrid) -> dict[str, tuple[str, str | None]]:
    ensure_identity()
    questions = {f"nano-{i}": OutgoingRequest(RequestMessage("hello")) for i in (1, 2, 3)}
    replies = EmulatingNodes(grid, EXPERIMENT, SimulatedClock()).ask(questions, 60.0)
    return {board: (reply.answer.board, reply.answer.error) for board, reply in replies.items()}


def test_two_nodes_emulate_three_boards() -> None:
    assert ask_names(AnsweringGrid()) == {f"nano-{i}": (f"nano-{i}", None) for i in (1, 2, 3)}


def test_the_boards_of_a_silent_node_have_failed() -> None:
    answers = ask_names(AnsweringGrid(silent=7))

    assert answers["nano-2"] == ("nano-2", "no reply within 60 s")
    assert [error for _, error in answers.values()].count(None) == 2


@pytest.mark.parametrize("grid", [AnsweringGrid(most=2), AnsweringGrid(refused=(0, 1, 2))])
def test_the_boards_of_a_push_that_is_too_large_have_failed_at_once(grid: AnsweringGrid) -> None:
    assert {error for _, error in ask_names(grid).values()} == {REJECTED_TEXT}


def test_one_refused_message_fails_its_board_alone() -> None:
    assert [error for _, error in ask_names(AnsweringGrid(refused=(1,))).values()] == [None, REJECTED_TEXT, None]


def test_nodes_leave_the_servers_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path | None] = []

    def compute(*_: object, folder: Path | None, **__: object) -> tuple[ReplyMessage, None]:
        folders.append(folder)
        return ReplyMessage("nano-1"), None

    monkeypatch.setattr(clients.app, "_compute_answer", compute)
    ask_names(AnsweringGrid())

    assert folders == [None] * 3


def test_real_boards_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("backend: fleet\nfleet: [nano]\n", encoding="utf-8")

    with pytest.raises(BadInput, match=r"fleet.yaml: got real boards; .*`fedge run`"):
        load_run_config({"experiment": str(path), "folder": ""})


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment with a SuperLink of its own, which ends with the test."""
    env = simulation_environment(os.environ, tmp_path / "app", tmp_path / "state")
    env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(find_free_port())
    Path(env["FLWR_HOME"]).mkdir(parents=True)
    yield env
    for pid in find_marked_processes(env[RUN_MARK]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def flwr_run(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts Flower's simulation."""
    without_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation runs on Ray")
    return pytest.mark.slow(pytest.mark.long(pytest.mark.xdist_group("flower")(without_ray(test))))


def run_flwr(environment: dict[str, str], app: Path, *words: str) -> str:
    command = [program("flwr"), "run", ".", "local", "--stream", *words]
    done = subprocess.run(
        command, cwd=app, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@flwr_run
def test_this_repository_runs_the_quickstart(environment: dict[str, str], project_root: Path, tmp_path: Path) -> None:
    del environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]  # as it is for a user
    config = tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    said = run_flwr(environment, project_root, "-c", f'folder="{tmp_path / "run"}"')
    if "uv sync failed" in said:
        pytest.skip("Flower needs a package index to look for dependencies")
    experiment = load_experiment(project_root / QUICKSTART, ["backend=local"])
    launcher.start_run(experiment, tmp_path / "local", lambda: None)

    assert config == {"experiment": str(QUICKSTART), "folder": ""}
    assert "No additional application dependencies needed installation" in said
    for record in (RoundRow, ClientRow):
        assert read_rows(tmp_path / "run", record) == read_rows(tmp_path / "local", record)


@flwr_run
def test_the_example_app_runs_and_a_second_run_starts_from_what_the_first_one_measured(
    environment: dict[str, str], project_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(project_root / "examples" / "flower-app", tmp_path / "app")
    environment["HOME"] = str(tmp_path / "home")
    for name in ("cold", "warm"):
        config = f'folder="{tmp_path / name}" num-server-rounds={ROUNDS}'
        run_flwr(environment, tmp_path / "app", "--federation-config", f"num-supernodes={NODES}", "-c", config)

    run = load_run(tmp_path / "cold")
    assert [row.done for row in run.rounds] == [NODES] * ROUNDS
    assert set(run.device_by_board) == {"nano-1", "agx-orin-64gb-1"}
    assert run.summary["energy_j"] > 0
    cold, warm = (read_rows(tmp_path / name, ClientRow) for name in ("cold", "warm"))
    assert {row.recalled_samples for row in cold} == {0}
    assert all(row.recalled_samples for row in warm)
