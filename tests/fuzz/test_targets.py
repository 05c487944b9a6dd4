"""Every parser of what others wrote takes hostile inputs or refuses them: no crash, no hang, no gigabytes, one line."""

import os

import pytest
from fuzz.fuzzing import FuzzTarget, describe_failure, fuzz_target
from fuzz.mutation import mutate_bytes
from fuzz.targets import TARGETS

INPUTS = max(5, int(os.environ.get("FEDGE_EXAMPLES", "100")) // 6)
"""`make fuzz` tries more. A process and its imports take a second per target, an input a few milliseconds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_inputs_are_taken_or_refused_in_one_line(name):
    outcome = fuzz_target(name, 0, INPUTS)

    assert [f"input {failure.number}: {failure.reason}" for failure in outcome.failures] == []


def _fail(data: bytes, _: object) -> None:
    if data == b"loop":
        while True:
            pass
    raise {b"refused": ValueError("a line"), b"lines": ValueError("two\nlines")}.get(data, KeyError(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"refused", ""), (b"lines", "no printable line"), (b"other", "KeyError"), (b"loop", "of computing")],
)
def test_a_failure_is_told_from_a_refusal(monkeypatch, data, reason):
    monkeypatch.setattr("fuzz.fuzzing.CPU_S", 0.05)

    found = describe_failure(FuzzTarget(tuple, _fail, mutate_bytes, (ValueError,)), data)

    assert (reason in found) if reason else not found
