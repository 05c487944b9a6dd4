"""Changes of knobs: every write is read back at once, and a finished change is verified once more as a whole."""

from typing import Any, Dict, List, Optional, Tuple

from fedge.powerd import write_plan
from fedge.powerd.knobs import Hardware, KnobState, highest_at_most, read_state
from fedge.powerd.machine import Machine, read_int, try_read_int
from fedge.powerd.mode_records import Mode
from fedge.powerd.write_plan import ControlWrite, LimitSpan

Snapshot = Dict[str, Any]


class WriteNotApplied(Exception):
    """A write that was refused or read back differently.

    Attributes:
        text: Description of the error.
        got: The value read back, if any.
    """

    def __init__(self, text: str, got: Optional[object] = None) -> None:
        super().__init__(text)
        self.text, self.got = text, got


def write_all(machine: Machine, writes: List[ControlWrite]) -> None:
    """Write and read back one by one.

    Raises:
        WriteNotApplied: A write failed or did not hold; the later ones are not done.
    """
    for write in writes:
        try:
            machine.write(write.path, str(write.value))
            got = read_int(machine, write.read_path)
        except OSError as error:
            text = f"wrote {write.value} to {write.path}: {error.strerror or error}"
            raise WriteNotApplied(text, try_read_int(machine, write.read_path)) from error
        if abs(got - write.expect) > write.slack:
            raise WriteNotApplied(f"wrote {write.value} to {write.path} and read back {got}, not {write.expect}", got)


def list_missing_writes(state: KnobState, hardware: Hardware, mode: Mode, lock_min: bool) -> List[ControlWrite]:
    """Return the writes from a state to a mode, empty if the mode is set; ``apply_mode`` decides their order."""
    wanted = _wanted_cores(hardware, mode)
    switched = write_plan.plan_cores_on(hardware.cores, state.online, wanted) + write_plan.plan_cores_off(
        hardware.cores, state.online, wanted
    )
    return switched + plan_clocks(state, hardware, mode, lock_min)


def apply_mode(machine: Machine, hardware: Hardware, state: KnobState, mode: Mode, lock_min: bool) -> KnobState:
    """Change from a state to a mode: cores on, then clocks (policies appear with their cores), then cores off.

    Returns:
        The state after the change.

    Raises:
        WriteNotApplied: A write did not hold.
        OSError: The state cannot be read.
    """
    wanted = _wanted_cores(hardware, mode)
    switched_on = write_plan.plan_cores_on(hardware.cores, state.online, wanted)
    write_all(machine, switched_on)
    state = read_state(machine, hardware) if switched_on else state
    write_all(machine, plan_clocks(state, hardware, mode, lock_min))
    write_all(machine, write_plan.plan_cores_off(hardware.cores, state.online, wanted))
    state = read_state(machine, hardware)
    left = list_missing_writes(state, hardware, mode, lock_min)
    if left:
        got = try_read_int(machine, left[0].read_path)
        raise WriteNotApplied(f"{left[0].read_path} changed again to {got} after {left[0].expect} was read back", got)
    return state


def _wanted_cores(hardware: Hardware, mode: Mode) -> Dict[int, bool]:
    return write_plan.select_first_cores(hardware.cores, mode.cores) if mode.cores is not None else {}


def plan_clocks(state: KnobState, hardware: Hardware, mode: Mode, lock_min: bool) -> List[ControlWrite]:
    """Return the writes for a mode's clocks.

    Without ``lock_min`` lower limits go to the table's lowest value, so that a mode means the same whatever was set
    before it.
    """
    writes: List[ControlWrite] = []
    if mode.cpu_khz is not None:
        for policy in state.policies:
            writes += write_plan.plan_limits(
                policy.files, policy.span, _clock_span(policy.table, mode.cpu_khz, lock_min)
            )
    gpu = hardware.gpu()
    if mode.gpu_hz is not None and gpu is not None:
        writes += write_plan.plan_limits(gpu.files, state.gpus[gpu.name], _clock_span(gpu.table, mode.gpu_hz, lock_min))
    if mode.emc_hz is not None:
        act = write_plan.plan_emc_lock if hardware.emc == "lock" else write_plan.plan_emc_cap
        writes += act(hardware.emc_files, state.emc, mode.emc_hz)
    return writes


def _clock_span(table: Tuple[int, ...], wanted: int, lock_min: bool) -> LimitSpan:
    high = highest_at_most(table, wanted) if table else wanted
    return LimitSpan(high if lock_min or not table else table[0], high)


def release_limits(machine: Machine, hardware: Hardware) -> None:
    """Lower the lower limits and unlock the memory, so that a stock mode can set its own values.

    Raises:
        WriteNotApplied: A write did not hold.
        OSError: The state cannot be read.
    """
    state = read_state(machine, hardware)
    writes: List[ControlWrite] = []
    clocks = [(policy.files, policy.span, policy.table) for policy in state.policies]
    gpu = hardware.gpu()
    if gpu is not None:
        clocks.append((gpu.files, state.gpus[gpu.name], gpu.table))
    for files, found, table in clocks:
        if table:
            writes += write_plan.plan_limits(files, found, LimitSpan(min(table[0], found.low), found.high))
    write_all(machine, writes + write_plan.plan_emc_release(hardware.emc_files, state.emc))


def make_snapshot(state: KnobState, preset: Optional[int]) -> Snapshot:
    """Return everything that a change can touch as JSON values: names and numbers only, never paths."""
    return {
        "online": {str(core): on for core, on in state.online.items()},
        "cpu": {policy.name: list(policy.span) for policy in state.policies},
        "gpu": {name: list(span) for name, span in state.gpus.items()},
        "emc": dict(state.emc._asdict()),
        "nvpmodel": preset,
    }
