"""Changes and restores knobs: every write is read back; a change is verified as a whole, a restore goes on."""

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from fedge.powerd import write_plan
from fedge.powerd.knobs import (
    Hardware,
    KnobState,
    find_policy_folders,
    highest_at_most,
    is_always_on,
    policy_files,
    read_emc,
    read_policy_table,
    read_span,
    read_state,
)
from fedge.powerd.machine import Machine, read_int, try_read_int
from fedge.powerd.mode_records import Mode, PowerdRefusal
from fedge.powerd.write_plan import ControlWrite, EmcState, LimitFiles, LimitSpan, plan_write

Snapshot = Dict[str, Any]


class WriteNotApplied(Exception):
    """A write that was refused or read back differently.

    Attributes:
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


DAMAGED = (ArithmeticError, ValueError, TypeError, LookupError, AttributeError)
FAILURES = (WriteNotApplied, PowerdRefusal, OSError, *DAMAGED)
"""Errors that restoring one knob may raise: a snapshot that was read from a file may contain anything."""


class StateRestore:
    """Restores a snapshot, which may lack parts.

    Attributes:
        left: Descriptions of what could not be restored.
    """

    def __init__(self, machine: Machine, hardware: Hardware, before: Snapshot) -> None:
        self._machine, self._hardware, self._before = machine, hardware, before
        self.left: List[str] = []

    def run(self) -> None:
        """Restore cores to be switched on, clocks, then cores to be switched off."""
        self.attempt("cores", partial(self._restore_cores, on=True))
        self.attempt("cpu", self._restore_cpu)
        self.attempt("gpu", self._restore_gpu)
        self.attempt("emc", self._restore_emc)
        self.attempt("cores", partial(self._restore_cores, on=False))

    def attempt(self, what: str, act: Callable[[], None]) -> None:
        """Call ``act`` and record its failure under the name ``what``."""
        try:
            act()
        except FAILURES as error:
            self.left.append(f"{what}: {error}")

    def _restore_cores(self, on: bool) -> None:
        wanted = {int(core): bool(value) for core, value in self._before.get("online", {}).items()}
        found = self._read_online()
        writes = (write_plan.plan_cores_on if on else write_plan.plan_cores_off)(self._hardware.cores, found, wanted)
        for write in writes:
            self.attempt(f"core {write.path}", partial(self._write_with_retry, [write]))
        if not on:  # one that should be on was tried before, and noted
            unread = [core for core in found if not wanted.get(core, True) and self._read_switch(core) is None]
            self.left += [f"{self._hardware.cores[core]}: it cannot be read, and was 0" for core in unread]

    def _read_online(self) -> Dict[int, bool]:
        """Return which cores are on; a core whose control file cannot be read counts as off."""
        return {core: self._read_switch(core) == 1 for core in self._hardware.cores}

    def _read_switch(self, core: int) -> Optional[int]:
        path = self._hardware.cores[core]
        return 1 if is_always_on(self._machine, core, path) else try_read_int(self._machine, path)

    def _write_with_retry(self, writes: List[ControlWrite]) -> None:
        """Write up to two times, since a core may be busy for a moment."""
        try:
            write_all(self._machine, writes)
        except WriteNotApplied:
            write_all(self._machine, writes)

    def _restore_cpu(self) -> None:
        """Restore every policy; one that was offline in the snapshot gets its whole range."""
        if "cpu" not in self._before:
            return
        before = dict(self._before["cpu"])
        for folder in find_policy_folders(self._machine, self._read_online()):
            name, table = folder.rsplit("/", 1)[1], read_policy_table(self._machine, folder)
            pair = before.pop(name, [table[0], table[-1]] if table else None)
            if pair is not None:
                self.attempt(name, partial(self._restore_limits, policy_files(folder), pair))
        self.left += [f"{name}: it is not there" for name in before]

    def _restore_gpu(self) -> None:
        gpu, before = self._hardware.gpu(), self._before.get("gpu", {})
        if gpu is not None and gpu.name in before:
            self._restore_limits(gpu.files, before[gpu.name])

    def _restore_limits(self, files: LimitFiles, pair: Sequence[Any]) -> None:
        """Restore a pair of limits in the right order; if that fails, try each limit separately."""
        low, high = (int(value) for value in pair)
        try:
            found = read_span(self._machine, files)
            write_all(self._machine, write_plan.plan_limits(files, found, LimitSpan(low, high)))
        except FAILURES:
            both = [plan_write(files.low, low, files.slack), plan_write(files.high, high, files.slack)]
            self._write_separately([*both, both[0]])

    def _restore_emc(self) -> None:
        if "emc" not in self._before:
            return
        found, files = self._before["emc"], self._hardware.emc_files
        before = EmcState(int(found["rate_hz"]), int(found["asked_hz"]), bool(found["locked"]), int(found["cap_hz"]))
        try:
            write_all(self._machine, write_plan.plan_emc_restore(files, read_emc(self._machine, files), before))
        except FAILURES:
            writes = [plan_write(files.cap, before.cap_hz)] if files.cap else []
            if files.lock and (before.locked or not files.lock_first):  # else the rate is the kernel's own again
                writes.append(write_plan.plan_rate(files, before.asked_hz))
            writes += [plan_write(files.lock, int(before.locked))] if files.lock else []
            self._write_separately(writes)

    def _write_separately(self, writes: List[ControlWrite]) -> None:
        """Try every write, then record each file that does not read back as it should."""
        for write in writes:
            try:
                write_all(self._machine, [write])
            except WriteNotApplied:
                continue
        for write in sorted(set(writes)):
            got = try_read_int(self._machine, write.read_path)
            if got is None or abs(got - write.expect) > write.slack:
                self.left.append(f"{write.path}: it {_describe_reading(got)}, not {write.expect}")


def _describe_reading(got: Optional[int]) -> str:
    return "cannot be read" if got is None else f"is {got}"
