"""Which Ray a program uses: the cluster that RAY_ADDRESS names, or a private one that nobody else can use."""

import os
import socket
import subprocess
import sys

import pytest

from fedge.child_processes import set_environment
from fedge.errors import BadInput
from fedge.studies.ray_session import ADDRESS_VARIABLE, check_address, uses_cluster


def test_a_run_joins_a_cluster_that_is_named_and_is_not_its_own():
    assert uses_cluster({ADDRESS_VARIABLE: "10.0.0.5:6379"})
    assert uses_cluster({ADDRESS_VARIABLE: "auto"})
    assert not any(uses_cluster(env) for env in ({}, {ADDRESS_VARIABLE: ""}, {ADDRESS_VARIABLE: "local"}))


def test_the_address_of_ray_client_is_refused_with_the_kind_that_is_wanted():
    with pytest.raises(BadInput, match=r"'ray://10.0.0.5:10001'; the address of the cluster's head"):
        check_address({ADDRESS_VARIABLE: "ray://10.0.0.5:10001"})
    check_address({ADDRESS_VARIABLE: "10.0.0.5:6379"})


def test_variables_are_set_inside_the_block_and_restored(monkeypatch):
    monkeypatch.setenv("FEDGE_A", "before")
    monkeypatch.delenv("FEDGE_B", raising=False)

    with set_environment({"FEDGE_A": "inside", "FEDGE_B": "inside"}):
        assert os.environ["FEDGE_A"] == os.environ["FEDGE_B"] == "inside"

    assert os.environ["FEDGE_A"] == "before"
    assert "FEDGE_B" not in os.environ


PRIVATE = """
import os, subprocess, sys
from fedge.studies.ray_session import open_ray
with open_ray(1):
    import ray
    address = ray.get_runtime_context().gcs_address
    stranger = "import ray; ray.init(address=%r, log_to_driver=False)" % address
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run([sys.executable, "-c", stranger], env=env, capture_output=True, timeout=100)
print(address, done.returncode)
"""


@pytest.mark.slow
def test_a_private_ray_listens_on_loopback_and_refuses_who_has_no_token():
    done = subprocess.run([sys.executable, "-c", PRIVATE], capture_output=True, text=True, check=True, timeout=300)

    address, refused = done.stdout.split()
    assert address.startswith("127.0.0.1:")
    assert refused != "0"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1)


IMPORTED_BEFORE = """
import ray
from fedge.studies.ray_session import open_ray
with open_ray(1):
    found = ray.get(ray.remote(lambda: 7).remote())
print(found)
"""


@pytest.mark.slow
def test_a_private_ray_is_reached_also_where_ray_was_imported_before():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_BEFORE], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "7\n"
