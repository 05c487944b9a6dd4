"""The ``fleet`` backend: real boards through a SuperLink that runs on this machine already."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from experiments.backends.processes import Launch, Log, ending, pause, private, spawn
from experiments.backends.staging import CONNECTION, run_config_toml, stage
from experiments.backends.submission import submit
from fedge.errors import RunFailed
from fedge.experiment import Experiment, SuperlinkSpec
from fedge.workloads import OWN_FILE

STARTED = re.compile(r"run (?:id )?(\d{6,})", re.IGNORECASE)
STOP_WITHIN_S = 15.0


def run_fleet(experiment: Experiment, folder: Path, on_round: Callable[[], None]) -> None:
    """Play the experiment in ``folder``; raises ``RunFailed`` when it cannot go on.

    The SuperLink's ServerApp writes the run folder, so it runs on this machine. A launcher that is interrupted stops
    the run: no board goes on working for nobody.
    """
    task = experiment.workload.task
    plugins = [Path(plugin) for plugin in (*experiment.plugins, *([task] if task.endswith(OWN_FILE) else []))]
    app = stage(folder, plugins, config={"experiment": "", "folder": ""})
    launch = Launch(app.resolve(), folder / ".flwr", folder / "logs", private(os.environ, folder), on_round)
    launch.flwr_home.mkdir(parents=True, exist_ok=True)
    config_file = launch.flwr_home / "run-config.toml"
    config = {"experiment": experiment.model_dump_json(), "folder": str(folder)}
    config_file.write_text(run_config_toml(config), encoding="utf-8")
    (launch.flwr_home / "config.toml").write_text(connection(experiment.superlink), encoding="utf-8")
    with ending(launch):
        try:
            submit(launch, config_file, [], lambda: None)
        except RunFailed:
            raise
        except BaseException:
            _stop(launch)
            raise


def connection(superlink: SuperlinkSpec) -> str:
    """Flower's ``config.toml`` for the SuperLink of a fleet."""
    trust = f'root-certificates = "{superlink.root_certificates}"' if superlink.root_certificates else "insecure = true"
    head = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    return f'{head}address = "{superlink.address}"\n{trust}\n'


def _stop(launch: Launch) -> None:
    """Ask the SuperLink to stop the run, if it was started."""
    found = STARTED.search(Log(launch.logs / "serverapp.log", 0).text())
    if found is None:
        return
    stopping = spawn(launch, ["flwr", "stop", found.group(1), CONNECTION], Log.open(launch.logs / "stop.log"))
    waited_s = 0.0
    while stopping.poll() is None and waited_s < STOP_WITHIN_S:
        pause(launch, 0.1)
        waited_s += 0.1
