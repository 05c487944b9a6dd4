"""A board's knobs behind one door: each change is checked, read back, and undone when it does not hold."""

from typing import Any, Callable, Dict, List, Optional

from fedge.powerd import allow, change, fan, nvpmodel, thermal
from fedge.powerd.change import NotStuck, Snapshot
from fedge.powerd.identity import identify
from fedge.powerd.knobs import State, discover, limits_of, look, mode_of
from fedge.powerd.machine import Machine
from fedge.powerd.mode import Mode, Options, Preset, Refused, Tables
from fedge.powerd.plan import plain
from fedge.powerd.putback import PutBack
from fedge.powerd.reading import maybe_text, maybe_whole

DROP_CACHES = "/proc/sys/vm/drop_caches"

Beside = Dict[str, Any]
"""What a change touches beside the knobs, as it was before: ``nvpmodel`` (its mode's id), ``fan`` (its raw speed)."""

First = Callable[[Mode, Beside], None]
"""Called with the mode found when a change is checked and planned, before its first write; may raise ``Refused``."""


def _nothing(*found: object) -> None:
    """Where nothing has to happen before the first write."""


class Board:
    """Discovers what the board has; raises ``Refused`` (failed) on a machine that is no Jetson or cannot be read."""

    def __init__(self, machine: Machine, options: Options) -> None:
        self._machine, self._options = machine, options
        self._identity = identify(machine)
        try:
            self._hardware = discover(machine, options)
        except OSError as error:
            raise Refused("failed", f"the board's knobs cannot be read: {error}; run as root on the board") from error
        self._had_zones = bool(thermal.zones(machine, options.needed_zones))

    def identity(self) -> Dict[str, Any]:
        """Model, compatible names and L4T release."""
        return self._identity.wire()

    def tables(self) -> Tables:
        """The values each knob can have."""
        return self._hardware.tables()

    def allowed(self) -> Tables:
        """The same above the floor."""
        return allow.above_floor(self.tables(), self._options)

    def emc_control(self) -> str:
        """``lock``, ``cap`` or ``none``."""
        return self._hardware.emc

    def presets(self) -> List[Preset]:
        """The modes of nvpmodel's file; none without it."""
        return self._presets(self._preset_id())

    def preset(self) -> Optional[Preset]:
        """The mode that nvpmodel says is set; None where it does not tell."""
        present = self._preset_id()
        return next((preset for preset in self._presets(present) if preset.id == present), None)

    def mode(self) -> Mode:
        """What is set now, as table values: the caps, and the memory's rate where it is locked."""
        return mode_of(self._look(), self._hardware)

    def limits(self) -> Dict[str, Any]:
        """The raw limits of every policy, GPU clock and the memory."""
        return dict(limits_of(self._look()))

    def snapshot(self, with_preset: bool = True) -> Snapshot:
        """Every knob, as JSON; asking nvpmodel takes longer than all the rest. The fan is told of when it changes."""
        return change.snapshot(self._look(), self._preset_id() if with_preset else None)

    def set_mode(self, mode: Mode, lock_min: bool = False, first: First = _nothing) -> Mode:
        """Sets the knobs that the mode names; the mode as read back. A mode that is set already costs one look.

        The upper limits are set; the lower ones to the table's lowest value, or with ``lock_min`` to the upper ones.
        Raises ``Refused`` (bad-request, not-allowed, off-table, below-floor; did-not-stick with the state put back).
        """
        allow.check(mode, self.tables(), self._options)
        state = self._look()
        found = mode_of(state, self._hardware)
        if not change.missing(state, self._hardware, mode, lock_min):
            return found
        first(found, {})
        try:
            return mode_of(change.to_mode(self._machine, self._hardware, state, mode, lock_min), self._hardware)
        except (NotStuck, OSError, Refused) as error:
            raise self._undone(change.snapshot(state, None), error) from error  # nvpmodel was not asked to change

    def set_preset(self, name_or_id: Any, first: First = _nothing) -> Mode:
        """Sets a stock mode through nvpmodel; the mode as read back.

        Raises ``Refused`` (off-table, below-floor, reboot-needed, container; failed where nvpmodel does not say what is
        set now; did-not-stick with the state put back).
        """
        present = nvpmodel.query(self._machine)
        if present is None:
            text = "nvpmodel does not say which mode is set now, so it could not be put back; see: sudo nvpmodel -q"
            raise Refused("failed", text)
        preset = allow.find(self._presets(present), name_or_id)
        allow.check_preset(preset, self.tables(), self._options)
        state = self._look()
        before = change.snapshot(state, present)
        first(mode_of(state, self._hardware), {"nvpmodel": present})
        try:
            self._enter(preset.id)
            self._check_met(preset.id)
            return self.mode()
        except (NotStuck, OSError, Refused) as error:
            raise self._undone(before, error) from error

    def put_back(self, snapshot: Snapshot) -> List[str]:
        """Sets a snapshot's state again, or the parts it has; what could not be put back. Never raises."""
        work = PutBack(self._machine, self._hardware, snapshot)
        work.attempt("nvpmodel", lambda: self._enter_again(snapshot.get("nvpmodel")))
        work.run()
        work.attempt("fan", lambda: self._fan_again(snapshot.get("fan")))
        return work.left

    def temperatures(self) -> Dict[str, float]:
        """Degrees C by zone, ``{}`` on a board that never had any; raises ``Refused`` (sensor-lost)."""
        found = thermal.temperatures(self._machine, self._options.needed_zones)
        if self._had_zones and not found:
            raise Refused("sensor-lost", f"all thermal zones are gone from {thermal.ZONES}; look at dmesg, or reboot")
        return found

    def drop_caches(self) -> None:
        """Drops the kernel's clean caches; raises ``Refused`` (failed).

        Dirty ones are not written out before: that may take minutes, and needs no root, so it is the asker's to do.
        """
        try:
            self._machine.write(DROP_CACHES, "3")
        except OSError as error:
            raise Refused("failed", f"{DROP_CACHES}: {error.strerror or error}; run as root on the board") from error

    def set_fan(self, percent: float, first: Callable[[Beside], None] = _nothing) -> None:
        """Sets the fan's speed; raises ``Refused`` (bad-request, not-allowed, failed; did-not-stick, put back).

        ``first`` is called with the speed before when all is checked, before the write.
        """
        write = fan.at(self._machine, percent)
        before = maybe_whole(self._machine, write.path)
        if before is None:
            unread = f"{write.path} cannot be read, so the speed before could not be put back; look at dmesg"
            raise Refused("failed", unread)
        if before == write.value:
            return
        first({"fan": before})
        try:
            change.write_all(self._machine, [write])
        except NotStuck as error:
            text = f"{error.text}; is another fan service running?"
            left: List[str] = []
            try:
                change.write_all(self._machine, [plain(write.path, before)])
            except NotStuck as again:
                left = [f"fan: {again.text}"]
                text += f" The speed before is not set again: {again.text}"
            raise Refused("did-not-stick", text, error.got, left) from error

    def _look(self) -> State:
        try:
            return look(self._machine, self._hardware)
        except OSError as error:
            raise Refused("failed", f"the board's state cannot be read: {error}") from error

    def _conf(self) -> nvpmodel.Conf:
        return nvpmodel.parse(maybe_text(self._machine, nvpmodel.CONF))

    def _presets(self, present: Optional[int]) -> List[Preset]:
        return list(nvpmodel.presets(self._machine, self._conf(), present, self._hardware))

    def _preset_id(self) -> Optional[int]:
        try:
            return nvpmodel.query(self._machine)
        except Refused:
            return None  # in a container no preset can be set, so none has to be put back

    def _enter(self, preset_id: int) -> None:
        change.release(self._machine, self._hardware)
        nvpmodel.switch(self._machine, preset_id)
        now = nvpmodel.query(self._machine)
        if now != preset_id:
            raise NotStuck(f"nvpmodel -m {preset_id} ended well, but nvpmodel -q says {now}", now)

    def _check_met(self, preset_id: int) -> None:
        conf = self._conf()
        model = nvpmodel.model_of(conf, preset_id)
        unmet = nvpmodel.unmet(nvpmodel.caps(conf, model), self._look(), self._hardware) if model is not None else None
        if unmet is not None:
            raise NotStuck(f"nvpmodel -m {preset_id} ended well, but {unmet[0]} reads back {unmet[1]}", unmet[1])

    def _enter_again(self, preset_id: Optional[int]) -> None:
        now = nvpmodel.query(self._machine) if preset_id is not None else None
        if preset_id is None or now == preset_id:
            return
        preset = next((preset for preset in self._presets(now) if preset.id == preset_id), None)
        if preset is None or preset.needs_reboot:
            raise NotStuck(f"preset {preset_id} is {'gone' if preset is None else 'not to be had without a reboot'}")
        self._enter(preset_id)

    def _fan_again(self, before: Optional[int]) -> None:
        if before is None:
            return
        path = fan.file(self._machine)
        if path is None:
            raise NotStuck(f"the fan's file is gone; it was at {before} of {fan.FULL}")
        if maybe_whole(self._machine, path) != int(before):
            change.write_all(self._machine, [plain(path, int(before))])

    def _undone(self, before: Snapshot, error: Exception) -> Refused:
        """Puts the state before back; the refusal that says so, or says that it is not."""
        left = self.put_back(before)
        ending = f"NOT put back: {'; '.join(left)}" if left else "the state before is set again"
        kind = error.kind if isinstance(error, Refused) and error.kind != "failed" else "did-not-stick"
        return Refused(kind, f"{error}; {ending}", getattr(error, "got", None), left)
