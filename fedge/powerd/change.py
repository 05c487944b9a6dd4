"""Changing knobs: every write is read back at once, and a finished change is looked over once more as a whole."""

from typing import Any, Dict, List, Optional, Tuple

from fedge.powerd import plan
from fedge.powerd.knobs import Hardware, State, look
from fedge.powerd.machine import Machine
from fedge.powerd.mode import Mode
from fedge.powerd.plan import Span, Write
from fedge.powerd.reading import at_or_below, maybe_whole, whole

Snapshot = Dict[str, Any]


class NotStuck(Exception):
    """A write that was refused, or that read back as something else; ``got`` is what was read back."""

    def __init__(self, text: str, got: Optional[object] = None) -> None:
        super().__init__(text)
        self.text, self.got = text, got


def write_all(machine: Machine, writes: List[Write]) -> None:
    """Write and read back, one by one; raises ``NotStuck`` at the first that does not stick."""
    for write in writes:
        try:
            machine.write(write.path, str(write.value))
            got = whole(machine, write.read_path)
        except OSError as error:
            text = f"wrote {write.value} to {write.path}: {error.strerror or error}"
            raise NotStuck(text, maybe_whole(machine, write.read_path)) from error
        if abs(got - write.expect) > write.slack:
            raise NotStuck(f"wrote {write.value} to {write.path} and read back {got}, not {write.expect}", got)


def missing(state: State, hardware: Hardware, mode: Mode, lock_min: bool) -> List[Write]:
    """The writes between a state and a mode: none where the mode is set. What to write first, ``to_mode`` knows."""
    wanted = _cores(hardware, mode)
    switched = plan.cores_on(hardware.cores, state.online, wanted) + plan.cores_off(
        hardware.cores, state.online, wanted
    )
    return switched + clocks(state, hardware, mode, lock_min)


def to_mode(machine: Machine, hardware: Hardware, state: State, mode: Mode, lock_min: bool) -> State:
    """From the state found to the mode, and the state then; raises ``NotStuck``, ``OSError``.

    Cores on, then clocks (policies come with their cores), then cores off.
    """
    wanted = _cores(hardware, mode)
    switched_on = plan.cores_on(hardware.cores, state.online, wanted)
    write_all(machine, switched_on)
    state = look(machine, hardware) if switched_on else state
    write_all(machine, clocks(state, hardware, mode, lock_min))
    write_all(machine, plan.cores_off(hardware.cores, state.online, wanted))
    state = look(machine, hardware)
    left = missing(state, hardware, mode, lock_min)
    if left:
        got = maybe_whole(machine, left[0].read_path)
        raise NotStuck(f"{left[0].read_path} changed again to {got} after {left[0].expect} was read back", got)
    return state


def _cores(hardware: Hardware, mode: Mode) -> Dict[int, bool]:
    return plan.first_cores(hardware.cores, mode.cores) if mode.cores is not None else {}


def clocks(state: State, hardware: Hardware, mode: Mode, lock_min: bool) -> List[Write]:
    """What has to be written for a mode's clocks. Without ``lock_min`` lower limits go to the table's lowest value,
    so that a mode means the same whatever was set before it.
    """
    writes: List[Write] = []
    if mode.cpu_khz is not None:
        for policy in state.policies:
            writes += plan.limits(policy.files, policy.span, _span(policy.table, mode.cpu_khz, lock_min))
    gpu = hardware.gpu()
    if mode.gpu_hz is not None and gpu is not None:
        writes += plan.limits(gpu.files, state.gpus[gpu.name], _span(gpu.table, mode.gpu_hz, lock_min))
    if mode.emc_hz is not None:
        act = plan.emc_locked if hardware.emc == "lock" else plan.emc_capped
        writes += act(hardware.emc_files, state.emc, mode.emc_hz)
    return writes


def _span(table: Tuple[int, ...], wanted: int, lock_min: bool) -> Span:
    high = at_or_below(table, wanted) if table else wanted
    return Span(high if lock_min or not table else table[0], high)


def release(machine: Machine, hardware: Hardware) -> None:
    """Lower limits down and the memory unlocked, so that a stock mode can set what it wants; raises ``NotStuck``."""
    state = look(machine, hardware)
    writes: List[Write] = []
    for policy in state.policies:
        writes += _lowered(policy.files, policy.span, policy.table)
    gpu = hardware.gpu()
    if gpu is not None:
        writes += _lowered(gpu.files, state.gpus[gpu.name], gpu.table)
    write_all(machine, writes + plan.emc_released(hardware.emc_files, state.emc))


def _lowered(files: plan.SpanFiles, found: Span, table: Tuple[int, ...]) -> List[Write]:
    return plan.limits(files, found, Span(min(table[0], found.low), found.high)) if table else []


def snapshot(state: State, preset: Optional[int]) -> Snapshot:
    """Everything a change can touch, as plain JSON. Names and numbers only: no path is ever taken from a snapshot."""
    return {
        "online": {str(core): on for core, on in state.online.items()},
        "cpu": {policy.name: list(policy.span) for policy in state.policies},
        "gpu": {name: list(span) for name, span in state.gpus.items()},
        "emc": dict(state.emc._asdict()),
        "nvpmodel": preset,
    }
