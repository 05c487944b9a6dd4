"""Phases reach whoever listens, named after the task that they belong to."""

import pytest

from fedge import phases


@pytest.fixture
def heard() -> list[tuple[str, bool]]:
    return []


@pytest.fixture(autouse=True)
def _listen(heard: list[tuple[str, bool]]):
    def listen(name: str, *, announce: bool) -> None:
        heard.append((name, announce))

    phases.add_listener(listen)
    yield
    phases.remove_listener(listen)


def test_a_phase_is_heard_with_its_task(heard):
    phases.begin_phase("starting", announce=True)
    with phases.open_task("0 of 2 done, now maxn"):
        phases.begin_phase("round 1 of 3")
    phases.begin_phase("writing")

    assert heard == [
        ("starting", True),
        ("0 of 2 done, now maxn", False),
        ("0 of 2 done, now maxn: round 1 of 3", False),
        ("writing", False),
    ]
