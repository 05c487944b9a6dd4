"""The time that ``power_mode`` adds to a round of a plain Flower app under ``flwr run``.

    python benchmarks/mod_overhead.py [ROUNDS] [--steps 100] [--step-s 0.1]

One run on Flower's simulation with four nodes that do the same work in every round: one without the mod, one on a
recorded Jetson with the real power daemon, two on emulated boards. A step waits for STEP_S and then calls an optimiser,
so that the machine's other work changes no step; a round has 10 s of steps. This file is the app, too.

Printed: for every node the time from the message's arrival to the reply in the first round, the median and the least
of the others, how much longer both are than without the mod, and how much its own process computes more (where the
machine has other work, the rest is waiting for it and for the daemon; the least is nearest to a quiet machine). The
goal is 2 % of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedge.flower import PowerAware, power_mode

ROOT = Path(__file__).resolve().parents[1]
MAX_OVERHEAD = 0.02
NODES = ("without the mod", "desk board", "emulated:nano", "emulated:agx-orin-64gb")
DESK_BOARD = "orin-nano-jp6"
PROJECT = """
[project]
name = "mod-overhead"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedge"
[tool.flwr.app.components]
serverapp = "mod_overhead:server_app"
clientapp = "mod_overhead:client_app"
[tool.flwr.app.config]
rounds = 1
steps = 1
step-s = 0.1
folder = ""
settings = ""
"""

# The app --------------------------------------------------------------------------------------------------------------


def time_message(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod: add the seconds of the whole message, those of the processor and the node's place to the reply."""
    begun_s, cpu_s = time.monotonic(), time.process_time()
    reply = call_next(message, context)
    if not reply.has_error():
        metrics = next(iter(reply.content.metric_records.values()))
        metrics["place"] = int(context.node_config["partition-id"])
        metrics["message-s"], metrics["cpu-s"] = time.monotonic() - begun_s, time.process_time() - cpu_s
    return reply


POWER_MODES = {
    1: power_mode("balanced", device="jetson"),
    2: power_mode("balanced", device=NODES[2]),
    3: power_mode("balanced", device=NODES[3]),
}


def choose_mode(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod: the power mode of the node's place, or nothing."""
    place = int(context.node_config["partition-id"])
    if place not in POWER_MODES:
        return call_next(message, context)
    context.node_config["settings"] = str(context.run_config["settings"])
    return POWER_MODES[place](message, context, call_next)


client_app = ClientApp(mods=[time_message, choose_mode])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Wait and step, as often as the run says."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    for _ in range(int(context.run_config["steps"])):
        time.sleep(float(context.run_config["step-s"]))
        weight.grad = torch.ones(1)
        optimiser.step()
    content = {"arrays": ArrayRecord({"weight": weight.detach()}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


class Noting(PowerAware):
    """``PowerAware`` that writes every reply's metrics to a file."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        received = list(replies)
        with (self._folder / "messages.jsonl").open("a", encoding="utf-8") as file:
            for reply in received:
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
                metrics = next(iter(reply.content.metric_records.values()))
                figures = [metrics.pop(name) for name in ("place", "message-s", "cpu-s")]
                file.write(json.dumps([server_round, *figures]) + "\n")
        return super().aggregate_train(server_round, received)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds with FedAvg."""
    nodes = {"min_train_nodes": len(NODES), "min_available_nodes": len(NODES), "fraction_evaluate": 0.0}
    strategy = Noting(FedAvg(**nodes), "balanced", folder=str(context.run_config["folder"]))
    start = ArrayRecord({"weight": torch.zeros(1)})
    strategy.start(grid, start, num_rounds=int(context.run_config["rounds"]))


# The program ----------------------------------------------------------------------------------------------------------


def run_app(folder: Path, settings: Path, rounds: int, steps: int, step_s: float) -> Path:
    """Run the app in ``folder`` under ``flwr run`` and return the folder of its rows."""
    from experiments.backends.run_processes import RUN_MARK, find_marked_processes
    from experiments.backends.sim_backend import find_free_port, simulation_environment

    app, rows = folder / "app", folder / "rows"
    app.mkdir(parents=True)
    shutil.copyfile(__file__, app / "mod_overhead.py")
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    env = simulation_environment(os.environ, app, folder)
    env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(find_free_port())
    Path(env["FLWR_HOME"]).mkdir()
    config = f'rounds={rounds} steps={steps} step-s={step_s} folder="{rows}" settings="{settings}"'
    federation = f"num-supernodes={len(NODES)} client-resources-num-cpus=1 init-args-num-cpus={len(NODES)}"
    command = ["flwr", "run", ".", "local", "--stream", "--federation-config", federation, "-c", config]
    try:
        done = subprocess.run(command, cwd=app, env=env, capture_output=True, text=True, check=False)
    finally:
        for pid in find_marked_processes(env[RUN_MARK]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if done.returncode != 0 or "Strategy execution finished" not in done.stdout:
        sys.exit(done.stdout + done.stderr)
    return rows


def print_overhead(rows: Path) -> None:
    """Print the times of the messages by node."""
    found = [json.loads(line) for line in (rows / "messages.jsonl").read_text("utf-8").splitlines()]
    later = {place: [row[2:] for row in found if row[1] == place and row[0] > 1] for place in range(len(NODES))}
    median_s, cpu_s = ([statistics.median(row[i] for row in rows) for rows in later.values()] for i in (0, 1))
    least_s = [min(wall_s for wall_s, _ in rows) for rows in later.values()]
    print(f"{'node':24}{'round 1':>10}{'median':>10}{'longer':>10}{'least':>10}{'longer':>10}{'processor':>11}")
    for place, name in enumerate(NODES):
        first_s = next(row[2] for row in found if row[1] == place)
        shares = [each[place] / each[0] - 1 for each in (median_s, least_s)]
        more_cpu = (cpu_s[place] - cpu_s[0]) / least_s[0]
        print(
            f"{name:24}{first_s:8.3f} s{median_s[place]:8.3f} s{100 * shares[0]:+8.2f} %"
            f"{least_s[place]:8.3f} s{100 * shares[1]:+8.2f} %{100 * more_cpu:+9.2f} %"
        )
    worst = max(least_s) / least_s[0] - 1
    cores, load = os.cpu_count(), os.getloadavg()[0]
    print(f"overhead at most {100 * worst:.2f} % (goal: {100 * MAX_OVERHEAD:.0f} %); {cores} cores, load {load:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.1)
    asked = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from contracts.desk import desk

    with tempfile.TemporaryDirectory() as name, desk(DESK_BOARD, Path(name), worker=False) as board:
        board_yaml = Path(name) / "node.yaml"
        settings = board.settings
        board_yaml.write_text(
            f"board: {settings.board}\nroot: {settings.root}\npower_socket: {settings.power_socket}\n"
            f"state_dir: {settings.state_dir}\n",  # with the default sampling rate, as on a provisioned board
            encoding="utf-8",
        )
        rows = run_app(Path(name) / "run", board_yaml, rounds=asked.rounds, steps=asked.steps, step_s=asked.step_s)
        print_overhead(rows)
