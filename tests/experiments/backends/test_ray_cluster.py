"""What is said of a cluster that RAY_ADDRESS names and that is not there, and how long it takes at most."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator

import pytest

from experiments.backends import ray_cluster
from experiments.backends.ray_cluster import find_dashboard, main
from experiments.backends.sim_backend import find_free_port
from fedge.errors import BadInput
from fedge.studies.ray_session import ADDRESS_ADVICE, ADDRESS_VARIABLE, LOOPBACK_VARIABLE


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import ray_constants

    monkeypatch.setenv(LOOPBACK_VARIABLE, "0")
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # another test may have imported Ray before


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a program that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.5:port"])
def test_what_is_no_address_is_told_with_an_example(address):
    assert json.loads(main(address)) == {"got": repr(address), "right": ADDRESS_ADVICE}


def test_where_nobody_listens_that_is_told_at_once():
    address, started_s = f"127.0.0.1:{find_free_port()}", time.monotonic()
    told = json.loads(main(address))
    assert told["got"].startswith(f"{address}, where nothing answers (Connection refused")
    assert LOOPBACK_VARIABLE not in told["right"]
    assert time.monotonic() - started_s < 10


def test_where_ray_looks_elsewhere_than_it_was_told_it_says_where(monkeypatch):
    from ray._private import services

    port = find_free_port()
    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda _: "127.0.0.2")
    told = json.loads(main(f"127.0.0.1:{port}"))
    assert told["got"].startswith(f"127.0.0.1:{port}, for Ray 127.0.0.2:{port}, where nothing answers")
    assert told["right"].endswith(f"{LOOPBACK_VARIABLE}=0 too")


@pytest.mark.slow
def test_somebody_who_says_nothing_is_given_up(silent):
    started_s = time.monotonic()
    with pytest.raises(BadInput, match=rf"{silent}, where no Ray answered within 3 s; the address of a running Ray"):
        find_dashboard({**os.environ, ADDRESS_VARIABLE: silent}, within_s=3)
    assert time.monotonic() - started_s < 10


@pytest.mark.slow
def test_the_answer_of_the_process_that_asks_is_one_line_for_the_user():
    address = f"127.0.0.1:{find_free_port()}"
    with pytest.raises(
        BadInput, match=rf"^RAY_ADDRESS: got {address}, where nothing answers \(.*\); the address of a "
    ):
        find_dashboard({**os.environ, ADDRESS_VARIABLE: address})


def test_the_dashboards_address_can_be_opened_as_it_is(monkeypatch):
    monkeypatch.setattr(ray_cluster, "query_dashboard", lambda _: "10.0.0.5:8265")
    assert ray_cluster._parse_answer(json.loads(main("10.0.0.5:6379"))) == "http://10.0.0.5:8265"
    assert ray_cluster._parse_answer({"dashboard": "https://ray.example"}) == "https://ray.example"
