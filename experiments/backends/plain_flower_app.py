"""The ServerApp of plain ``flwr run .``: runs an experiment's YAML, by default the quickstart, on any number of nodes.

Boards are emulated, so any node can answer for any of them: a request says which board it is for, and of which
experiment. Rows and report are those of ``fedge run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from experiments.backends import launcher
from experiments.report.run.live_terminal import print_run_summary
from experiments.report.tables import print_lines
from experiments.spec.experiment_loader import load_experiment
from fedge.clock import RealClock
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment, list_boards
from fedge.protocols import Clock
from fedge.telemetry import run_folder
from fedge.wire import ReplyMessage
from server.run import run_experiment
from server.transport.client_port import IncomingReply, OutgoingRequest, ReplyPredicate, never_enough
from server.transport.grid_port import POLL_S, REJECTED_TEXT, poll, push
from server.transport.message_codec import address_request, decode_reply, encode_request

ROOT = Path(__file__).resolve().parents[2]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config names and write its report."""
    experiment, folder = load_run_config(context.run_config)

    def run(experiment: Experiment, folder: Path, refresh: launcher.Refresh) -> None:
        run_experiment(experiment, EmulatingNodes(grid, experiment, RealClock()), folder)

    summary = launcher.start_run(experiment, folder, lambda: None, backend=run)
    console = Console()
    print_run_summary(console, summary)
    print_lines(console, [f"report: {folder / run_folder.REPORT}"])


def load_run_config(config: Mapping[str, object]) -> tuple[Experiment, Path]:
    """Load the experiment of the run config and choose the run's folder.

    Raises:
        BadInput: The experiment is invalid, or one that plain ``flwr run`` cannot run.
    """
    path = Path(str(config["experiment"])).expanduser()
    experiment = load_experiment(path if path.is_file() else ROOT / path)
    if experiment.backend == "fleet" or experiment.plugins:
        got = "real boards" if experiment.backend == "fleet" else f"plugins {', '.join(experiment.plugins)}"
        raise BadInput(str(path), got, "`fedge run` for it: `flwr run .` emulates boards, without plug-ins")
    experiment = experiment.model_copy(update={"backend": "sim"})
    launcher.check_runnable(experiment)
    return experiment, launcher.choose_folder(experiment, Path(str(config["folder"])) if config["folder"] else None)


class EmulatingNodes:
    """A ``ClientPort`` that deals the requests to the nodes, which emulate the boards of their messages."""

    def __init__(self, grid: Grid, experiment: Experiment, clock: Clock) -> None:
        self._grid, self._clock = grid, clock
        self._text = experiment.model_dump_json()
        self._index = {board.name: board.index for board in list_boards(experiment)}
        self._connect_timeout_s = experiment.superlink.connect_timeout_s

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        nodes = self._nodes()
        messages = [self._encode(next(nodes), board, question) for board, question in questions.items()]
        ends_s = self._clock.now_s() + timeout_s
        sent = list(zip(push(self._grid, messages), questions, strict=True))
        errors = {board: f"no reply within {timeout_s:.4g} s" if sent_id else REJECTED_TEXT for sent_id, board in sent}
        replies = {board: IncomingReply(ReplyMessage(board, error=error)) for board, error in errors.items()}
        waiting = {sent_id: board for sent_id, board in sent if sent_id}
        for pulled in poll(self._grid, self._clock, waiting, ends_s):
            for message in pulled:
                board = waiting.pop(message.metadata.reply_to_message_id)
                replies[board] = decode_reply(board, message, questions[board])
        return replies

    def _nodes(self) -> cycle[int]:
        """Return the connected nodes in turn, without an end; wait for the first one."""
        began_s = self._clock.now_s()
        while not (nodes := sorted(self._grid.get_node_ids())):
            if self._clock.now_s() - began_s > self._connect_timeout_s:
                raise RunFailed(f"no node came up in {self._connect_timeout_s:.0f} s")
            self._clock.sleep_s(POLL_S)
        return cycle(nodes)

    def _encode(self, node: int, board: str, question: OutgoingRequest) -> Message:
        return address_request(encode_request(node, question), self._text, self._index[board])
