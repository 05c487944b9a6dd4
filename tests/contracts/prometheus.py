"""A real Prometheus for a test: on loopback, with its data in the test's folder, ended by its process id."""

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from contracts.processes import wait_for

from experiments.backends.sim_backend import find_free_port

PROGRAM = shutil.which("prometheus", path=f"{os.environ.get('PATH', '')}:/usr/bin")
needs_prometheus = pytest.mark.skipif(PROGRAM is None, reason="the distribution's package prometheus is not here")
LIMIT_S = 60.0
T = TypeVar("T")


def got(address: str, limit_s: float = 10.0) -> bytes | None:
    """What stands at an address; None where nobody answers, or nothing good."""
    try:
        with urllib.request.urlopen(address, timeout=limit_s) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    address: str

    def asked(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        """The series of an instant query, each with its labels and its value now; fails for one that does not parse."""
        words = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/query?{words}", timeout=30) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{query}: {error.read().decode()}")
        data = said["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def value(self, query: str) -> float | None:
        """The value of the only series; None while there is none."""
        found = self.asked(query)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def targets(self) -> list[Mapping[str, object]]:
        said = json.loads(got(f"{self.address}/api/v1/targets") or b'{"data": {"activeTargets": []}}')
        return list(said["data"]["activeTargets"])


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """One that scrapes ``targets`` (job -> host:port) every second."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [{"job_name": job, "static_configs": [{"targets": [at]}]} for job, at in targets.items()]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    # JSON is YAML too.
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    port = find_free_port()
    command = [
        str(PROGRAM),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "GOMAXPROCS": "1"})
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            wait_for(lambda: got(f"{found.address}/-/ready"), "Prometheus is ready")
            yield found
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
