"""Restoring a snapshot: each knob separately, as far as possible, whatever else fails."""

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

from fedge.powerd import write_plan
from fedge.powerd.knob_changes import Snapshot, WriteNotApplied, write_all
from fedge.powerd.knobs import (
    Hardware,
    find_policy_folders,
    is_always_on,
    policy_files,
    read_emc,
    read_policy_table,
    read_span,
)
from fedge.powerd.machine import Machine, try_read_int
from fedge.powerd.mode_records import PowerdRefusal
from fedge.powerd.write_plan import ControlWrite, EmcState, LimitFiles, LimitSpan, plan_write

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
