"""The role ``monitoring`` on hosts: Debian's Prometheus reads the page and the boards' machines, and PromQL answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

pytest.importorskip("flwr", reason="the fleet meets on Flower's SuperLink")
pytest.importorskip("ansible", reason="the playbooks need ansible-core")

from fleet.base import CannotHave
from fleet.hosts import INSTALLED, Hosts
from fleet.packages import fetched, offer, offer_no_more

pytestmark = [pytest.mark.fleet, pytest.mark.slow, pytest.mark.xdist_group("hosts")]
NODE = "prometheus-node-exporter"
WANTED = ("-e", "monitoring_node_exporter=true", "-e", "monitoring_every_s=1")
ANSWERS_S = 60.0
SAMPLES = 3
"""Of a series, in the time that is asked for: it is read again and again."""
ASK = (
    f"{INSTALLED}/.venv/bin/python -c 'import urllib.request as u;"
    ' print(u.urlopen("http://127.0.0.1:9090/api/v1/query?query=%s", timeout=5).read().decode())\''
)


@pytest.fixture(scope="module")
def watched(provisioned: Hosts) -> Iterator[Hosts]:
    """The provisioned fleet with Prometheus; its packages are left to removal, which knows that they are fedge's."""
    try:
        folder = fetched(["prometheus", NODE])
    except CannotHave as reason:
        pytest.skip(str(reason))
    with ExitStack() as stack:
        for host in provisioned.all:
            offer(host, folder)
            stack.callback(offer_no_more, host)
        begun_s = time.monotonic()
        done = provisioned.playbook("monitoring.yml", *WANTED)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        print(f"\nmonitoring: {time.monotonic() - begun_s:.0f} s")
        yield provisioned


def answer(hosts: Hosts, query: str) -> dict[str, float]:
    """The instant value of each series by its job and its board; nothing while Prometheus does not answer."""
    said = hosts.server.ssh(ASK % quote(query, safe=""))
    found = json.loads(said.stdout)["data"]["result"] if said.returncode == 0 else []
    return {
        " ".join(filter(None, (one["metric"].get("job"), one["metric"].get("board")))): float(one["value"][1])
        for one in found
    }


def until(hosts: Hosts, query: str, names: set[str]) -> dict[str, float]:
    """The values once these series are there."""
    end_s, found = time.monotonic() + ANSWERS_S, {}
    while not names <= set(found):
        assert time.monotonic() < end_s, (query, found, hosts.server.ssh("journalctl -n 30 -u prometheus").stdout)
        found = answer(hosts, query)
        time.sleep(0.5)
    return found


def test_prometheus_reads_the_page_and_every_boards_machine(watched):
    boards = {f"boards {name}" for name in watched.boards}
    up = until(watched, "up == 1", {"prometheus", "fedge", *boards})

    assert set(up) == {"prometheus", "fedge", *boards}


def test_promql_answers_of_each_board_what_it_told_and_what_its_machine_does(watched):
    told = {f"fedge {name}" for name in watched.boards}
    read = until(watched, f"count_over_time(fedge_board_power_watts[20s]) >= {SAMPLES}", told)
    power_w = answer(watched, "fedge_board_power_watts")
    memory = until(watched, "node_memory_MemTotal_bytes", {f"boards {name}" for name in watched.boards})
    age_s = until(watched, "fedge_board_sample_age_seconds", told)

    assert set(read) == set(power_w) == told
    assert min(power_w.values()) > 0
    assert min(memory.values()) > 1e6
    assert max(age_s.values()) < ANSWERS_S


def test_prometheus_listens_on_loopback_alone_and_the_node_exporter_on_the_boards_own_address(watched):
    server = re.findall(r"(\S+):9090\s", watched.server.run("ss -Hltn"))
    boards = {name: re.findall(r"(\S+):9100\s", host.run("ss -Hltn")) for name, host in watched.boards.items()}

    assert server == ["127.0.0.1"]
    assert boards == {name: [host.address] for name, host in watched.boards.items()}


def test_doing_it_again_changes_nothing(watched):
    done = watched.playbook("monitoring.yml", *WANTED)

    assert done.returncode == 0, done.stdout[-4000:]
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout[-4000:]
