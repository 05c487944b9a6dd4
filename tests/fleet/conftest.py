"""Test fleets for the tests of this folder, made once for all; skipped with the reason where they cannot be had."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from fleet.base import CannotHave
from fleet.hosts import BOARDS, Hosts, fleet_hosts

BOARDS_VARIABLE = "FLEET_BOARDS"
"""Some of the boards by their names, where a machine has little time; all four otherwise."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Removal comes last: all files share one fleet."""
    items.sort(key=lambda item: item.path.name == "test_removal.py")


@pytest.fixture(scope="session")
def fleet() -> Iterator[Hosts]:
    """The server and its boards, up and bare."""
    names = os.environ.get(BOARDS_VARIABLE, "").split() or BOARDS
    begun_s = time.monotonic()
    try:
        with fleet_hosts({name: BOARDS[name] for name in names}) as hosts:
            print(f"\n{len(hosts.all)} hosts up: {time.monotonic() - begun_s:.0f} s")
            yield hosts
    except CannotHave as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def provisioned(fleet: Hosts) -> Hosts:
    """The fleet after ``fedge fleet provision``, every board's SuperNode online."""
    begun_s = time.monotonic()
    done = fleet.fedge("provision")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(f"\nprovisioned from bare: {time.monotonic() - begun_s:.0f} s")
    fleet.wait_online(fleet.boards)
    return fleet
