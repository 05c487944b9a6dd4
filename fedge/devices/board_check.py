"""Check of a real board: set each knob twice and read it back, measure power, restore the board, ask its worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from fedge.devices.board_power import WIRE_KNOBS, connect_powerd, format_wire_mode
from fedge.devices.board_spec import KNOBS
from fedge.devices.emulated_board import SWITCH_S
from fedge.devices.jetson_board import BoardLease
from fedge.devices.local_board import BoardLocation, LocalBoard, open_local_board
from fedge.errors import BoardError
from fedge.powerd.powerd_client import PowerdClient, PowerdError
from fedge.types import Energy
from fedge.worker.worker_client import WorkerClient, WorkerError

PASSED, FAILED, SKIPPED = "ok", "FAILED", "skipped"
HOLDER = "board-check"
CHANGES = 5
"""Changes there and back whose time is measured per knob: a median of ten, in about a second."""


@dataclass(frozen=True, slots=True)
class BoardCheckFinding:
    """One line of the check."""

    what: str
    result: str
    seen: str


def check_board(
    place: BoardLocation, worker_socket: str, seconds: float, report: Callable[[str], None]
) -> tuple[BoardCheckFinding, ...]:
    """Check the board; failures of single knobs are findings.

    Raises:
        BoardError: If the board cannot be reached at all.
    """
    with open_local_board(place) as here, connect_powerd(place.power_socket) as power:
        report(f"{here.identity.model}, {here.catalogued.title}, L4T {here.identity.l4t or 'unknown'}")
        before = power.get()
        allowed = power.describe()["allowed"]
        with BoardLease(lambda: PowerdClient(place.power_socket), HOLDER) as lease:
            findings = [
                finding
                for knob in WIRE_KNOBS
                for finding in _check_knob(power, token=lease.token, knob=knob, allowed=allowed, report=report)
            ]
            report(f"measuring for {seconds:g} s ...")
            findings += _measure_power(here, seconds)
        findings.append(_check_restored(before, power.get()))
    return (*findings, _check_worker(worker_socket))


def _check_knob(
    power: PowerdClient,
    token: str,
    knob: tuple[str, str, float],
    allowed: Mapping[str, Sequence[int]],
    report: Callable[[str], None],
) -> Iterator[BoardCheckFinding]:
    name, title, unit = knob
    values = _select_two_values(allowed[name])
    if len(values) < 2:
        yield BoardCheckFinding(title, SKIPPED, "the board has no choice here")
        return
    for value in values:
        report(f"{title} to {value / unit:g} ...")
        yield _check_set_mode(power, token, f"{title} to {value / unit:g}", {name: value})
    yield _measure_change(power, token, knob=knob, values=values)


def _select_two_values(table: Sequence[int]) -> Sequence[int]:
    """Return the two values to try: the second lowest, so that either end value changes, then the highest."""
    return (table[min(1, len(table) - 2)], table[-1]) if len(table) > 1 else ()


def _check_set_mode(power: PowerdClient, token: str, what: str, mode: dict[str, int]) -> BoardCheckFinding:
    start_s = time.monotonic()
    try:
        answer = power.set_mode(mode, token=token)
    except PowerdError as error:
        return BoardCheckFinding(what, FAILED, str(error))
    took_s = time.monotonic() - start_s
    return BoardCheckFinding(what, PASSED, f"read back {format_wire_mode(answer['mode'])} after {1e3 * took_s:.0f} ms")


def _measure_change(
    power: PowerdClient, token: str, *, knob: tuple[str, str, float], values: Sequence[int]
) -> BoardCheckFinding:
    """Measure how long a new value of a knob takes, until the daemon has read it back."""
    (name, title, _), times_s = knob, list[float]()
    cores = abs(values[1] - values[0]) if name == "cores" else 1
    for value in CHANGES * tuple(values):
        start_s = time.monotonic()
        try:
            power.set_mode({name: value}, token=token)
        except PowerdError as error:
            return BoardCheckFinding(f"{title}, change", FAILED, str(error))
        times_s.append((time.monotonic() - start_s) / cores)
    each = " per core" if name == "cores" else ""
    seen = f"{1e3 * statistics.median(times_s):.1f} ms{each}, median of {len(times_s)} with reading back"
    assumed = next(SWITCH_S[field] for field, (key, _, _) in KNOBS.items() if key == name)
    emulated = f"emulated boards take {1e3 * assumed.value:g} ms{each} ({assumed.label})"
    return BoardCheckFinding(f"{title}, change", PASSED, f"{seen}; {emulated}")


def _measure_power(here: LocalBoard, seconds: float) -> Iterator[BoardCheckFinding]:
    start_s = time.monotonic()
    time.sleep(seconds)
    try:
        energy = here.sampler.energy_between(start_s, time.monotonic())
        sample = here.sensor.read()
    except BoardError as error:
        yield BoardCheckFinding("power", FAILED, str(error))
        return
    yield BoardCheckFinding("power", FAILED if energy.gaps else PASSED, _describe_energy(energy))
    rails = ", ".join(f"{rail} {watts:.2f} W" for rail, watts in sample.rails_w.items())
    yield BoardCheckFinding("rails now", PASSED, rails)
    hottest = sample.hottest_c
    yield BoardCheckFinding(
        "temperature", *((SKIPPED, "no zone readable") if hottest is None else (PASSED, f"{hottest} C"))
    )
    for note in getattr(here.sensor, "notes", ()):
        yield BoardCheckFinding("note", SKIPPED, note)


def _describe_energy(energy: Energy) -> str:
    odd = [f"{energy.gaps} gaps, the longest {energy.longest_gap_s:.1f} s"] if energy.gaps else []
    odd += ["throttled"] if energy.throttled else []
    text = f"{energy.mean_w:.2f} W from {energy.samples} samples, total = {energy.total_power}"
    return "; ".join([text, *odd])


def _check_restored(before: Mapping[str, Any], after: Mapping[str, Any]) -> BoardCheckFinding:
    same = _persistent_limits(before) == _persistent_limits(after) and before["mode"] == after["mode"]
    seen = (
        f"as found: {format_wire_mode(after['mode'])}" if same else f"found {before['limits']}, now {after['limits']}"
    )
    return BoardCheckFinding("put back", PASSED if same else FAILED, seen)


def _persistent_limits(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the limits that persist until they are set again; a memory clock without a lock does not."""
    limits = dict(state["limits"])
    emc = limits["emc"]
    return limits if emc["locked"] else limits | {"emc": {name: emc[name] for name in emc if name != "rate_hz"}}


def _check_worker(socket: str) -> BoardCheckFinding:
    try:
        with closing(WorkerClient(socket, timeout_s=5.0)) as worker:
            status = worker.status()
    except WorkerError as error:
        return BoardCheckFinding("worker", FAILED, str(error))
    cuda = (status.get("cuda") or {}).get("name", "no CUDA")
    return BoardCheckFinding("worker", PASSED, f"Python {status['python']}, torch {status['torch']}, {cuda}")


def is_passed(findings: Sequence[BoardCheckFinding]) -> bool:
    """Return whether no finding is a failure."""
    return all(finding.result != FAILED for finding in findings)
