"""Control of a board's knobs: what may be set, each change checked, read back, and undone if it does not hold."""

import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from fedge.powerd import knob_changes, nvpmodel, thermal_guard
from fedge.powerd.config import Config
from fedge.powerd.knob_changes import Snapshot, StateRestore, WriteNotApplied
from fedge.powerd.knobs import KnobState, discover_hardware, limits_from_state, mode_from_state, read_state
from fedge.powerd.machine import Machine, try_read_int, try_read_text
from fedge.powerd.mode_records import KnobTables, Mode, PowerdRefusal, Preset
from fedge.powerd.write_plan import plan_write

MAX_SHOWN_VALUES = 24
"""Number of table values shown in an error text."""


def above_floor(tables: KnobTables, config: Config) -> KnobTables:
    """Return the tables without the values below the floor; a knob that ends below it keeps its highest value."""
    return tables._replace(
        cores=_drop_below(tables.cores, config.floor_cores), cpu_khz=_drop_below(tables.cpu_khz, config.floor_cpu_khz)
    )


def _drop_below(values: Tuple[int, ...], floor: int) -> Tuple[int, ...]:
    return tuple(value for value in values if value >= floor) or values[-1:]


def check_mode(mode: Mode, tables: KnobTables, config: Config) -> None:
    """Check that every knob that a mode names may be set.

    Raises:
        PowerdRefusal: Of kind not-allowed, off-table or below-floor.
    """
    allowed = above_floor(tables, config)
    for knob, value in mode.to_wire().items():
        table, got = getattr(tables, knob), f"got {knob} {value}"
        if not table:
            raise PowerdRefusal("not-allowed", f"{got}; this board has no such knob: leave {knob} out")
        if value not in table:
            raise PowerdRefusal("off-table", f"{got}; this board has {format_values(table)}: choose one of these")
        if value not in getattr(allowed, knob):
            raise PowerdRefusal("below-floor", _floor_text(got, knob, getattr(allowed, knob)))


def check_preset(preset: Preset, tables: KnobTables, config: Config) -> None:
    """Check that a stock mode may be set.

    Raises:
        PowerdRefusal: Of kind reboot-needed, or below-floor if the mode would starve the board's own services.
    """
    if preset.needs_reboot:
        raise PowerdRefusal(
            "reboot-needed",
            f"got preset {preset.name}; its GPU power-gating mask differs from the present one, which needs a reboot, "
            f"and nothing here reboots: run 'sudo nvpmodel -m {preset.id}' by hand and reboot, or choose another",
        )
    allowed = above_floor(tables, config)
    for knob in ("cores", "cpu_khz"):
        value, values = getattr(preset.mode, knob), getattr(allowed, knob)
        if value is not None and values and value < values[0]:
            raise PowerdRefusal(
                "below-floor", _floor_text(f"got preset {preset.name} with {knob} {value}", knob, values)
            )


def _floor_text(got: str, knob: str, allowed: Tuple[int, ...]) -> str:
    return (
        f"{got}; the floor that keeps the board's own services alive is {allowed[0]}: "
        f"choose at least that, or lower the floor of {knob} in the daemon's file"
    )


def find_preset(presets: List[Preset], name_or_id: Any) -> Preset:
    """Return the preset with this id or name (case-insensitive).

    Raises:
        PowerdRefusal: Of kind off-table, with the presets that exist.
    """
    wanted = str(name_or_id).strip().lower()
    for preset in presets:
        if wanted in (preset.name.lower(), str(preset.id)):
            return preset
    known = ", ".join(f"{preset.name} ({preset.id})" for preset in presets)
    text = f"got preset {wanted[:60]!r}; this board has {known or 'none'}: choose one of these"
    raise PowerdRefusal("off-table", text)


def format_values(values: Tuple[int, ...]) -> str:
    """Format table values for an error text."""
    head = ", ".join(str(value) for value in values[:MAX_SHOWN_VALUES])
    return head if len(values) <= MAX_SHOWN_VALUES else f"{head}, ... ({len(values)} values up to {values[-1]})"


TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
RELEASE = "/etc/nv_tegra_release"
L4T = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")


class DeviceTreeIdentity(NamedTuple):
    """Identity of a board.

    Attributes:
        compatible: Compatible names, most specific first.
        l4t: L4T release such as "35.4.1"; empty if unknown.
    """

    model: str
    compatible: List[str]
    l4t: str


def identify_board(machine: Machine) -> DeviceTreeIdentity:
    """Identify the board.

    Raises:
        PowerdRefusal: Of kind failed, on a machine that is not a Jetson.
    """
    for tree in TREES:
        model = try_read_text(machine, f"{tree}/model")
        compatible = [name for name in try_read_text(machine, f"{tree}/compatible").split("\0") if name.strip()]
        if "jetson" in model.lower() or any(name.startswith("nvidia,tegra") for name in compatible):
            found = L4T.search(try_read_text(machine, RELEASE))
            return DeviceTreeIdentity(model, compatible, f"{found.group(1)}.{found.group(2)}" if found else "")
    text = f"this machine is no Jetson: its device tree says {(model or 'nothing')[:80]!r}"
    raise PowerdRefusal("failed", f"{text}; fedge-powerd runs on the board itself, as root")


DROP_CACHES = "/proc/sys/vm/drop_caches"
FAN_TARGET_PWM = "/sys/devices/pwm-fan/target_pwm"
FAN_HWMON = "/sys/class/hwmon/hwmon*"
FAN_FULL_PWM = 255

SideState = Dict[str, Any]
"""State outside the knobs before a change: ``nvpmodel`` (id of its mode), ``fan`` (raw PWM value)."""

BeforeFirstWrite = Callable[[Mode, SideState], None]
"""Called with the current mode once a change is checked and planned, before its first write; may raise
``PowerdRefusal``.
"""


def _do_nothing(*found: object) -> None:
    """Do nothing before the first write."""


class BoardControl:
    """Discovers and controls the board's knobs.

    Raises:
        PowerdRefusal: Of kind failed, on a machine that is not a Jetson or whose knobs cannot be read.
    """

    def __init__(self, machine: Machine, config: Config) -> None:
        self._machine, self._config = machine, config
        self._identity = identify_board(machine)
        try:
            self._hardware = discover_hardware(machine, config)
        except OSError as error:
            text = f"the board's knobs cannot be read: {error}; run as root on the board"
            raise PowerdRefusal("failed", text) from error
        self._had_zones = bool(thermal_guard.list_zones(machine, config.needed_zones))

    def identity(self) -> Dict[str, Any]:
        """Return the model, the compatible names and the L4T release."""
        return dict(self._identity._asdict())

    def tables(self) -> KnobTables:
        """Return the values of each knob."""
        return self._hardware.tables()

    def allowed_tables(self) -> KnobTables:
        """Return the values of each knob that are not below the floor."""
        return above_floor(self.tables(), self._config)

    def emc_control(self) -> str:
        """Return how the memory clock is controlled: ``lock``, ``cap`` or ``none``."""
        return self._hardware.emc

    def presets(self) -> List[Preset]:
        """Return the modes of nvpmodel's file; empty without that file."""
        return self._list_presets(self._query_preset_id())

    def preset(self) -> Optional[Preset]:
        """Return the mode that nvpmodel reports as set; None if it reports none."""
        present = self._query_preset_id()
        return next((preset for preset in self._list_presets(present) if preset.id == present), None)

    def mode(self) -> Mode:
        """Return the current mode as table values: the upper limits, and the memory's rate if it is locked."""
        return mode_from_state(self._read_state(), self._hardware)

    def limits(self) -> Dict[str, Any]:
        """Return the raw limits of every CPU policy, GPU clock and the memory."""
        return dict(limits_from_state(self._read_state()))

    def snapshot(self, with_preset: bool = True) -> Snapshot:
        """Return the state of every knob as JSON values; the fan is added when it is changed.

        Args:
            with_preset: Whether to query nvpmodel too, which takes longer than all the rest.
        """
        return knob_changes.make_snapshot(self._read_state(), self._query_preset_id() if with_preset else None)

    def set_mode(self, mode: Mode, lock_min: bool = False, first: BeforeFirstWrite = _do_nothing) -> Mode:
        """Set the knobs that the mode names and return the mode as read back; one already set costs only one reading.

        The upper limits are set; the lower ones to the table's lowest value, or with ``lock_min`` to the upper ones.

        Raises:
            PowerdRefusal: Of kind not-allowed, off-table or below-floor; or did-not-stick, after the previous state was
                restored.
        """
        check_mode(mode, self.tables(), self._config)
        state = self._read_state()
        found = mode_from_state(state, self._hardware)
        if not knob_changes.list_missing_writes(state, self._hardware, mode, lock_min):
            return found
        first(found, {})
        try:
            state_now = knob_changes.apply_mode(self._machine, self._hardware, state, mode, lock_min=lock_min)
        except (WriteNotApplied, OSError, PowerdRefusal) as error:
            before = knob_changes.make_snapshot(state, None)  # nvpmodel was not asked to change
            raise self._undo(before, error) from error
        return mode_from_state(state_now, self._hardware)

    def set_preset(self, name_or_id: Any, first: BeforeFirstWrite = _do_nothing) -> Mode:
        """Set a stock mode by its name (case-insensitive) or id through nvpmodel, and return the mode as read back.

        Raises:
            PowerdRefusal: Of kind off-table, below-floor, reboot-needed or container; failed if nvpmodel does not
                report the current mode; did-not-stick after the previous state was restored.
        """
        present = nvpmodel.query_preset_id(self._machine)
        if present is None:
            text = "nvpmodel does not say which mode is set now, so it could not be put back; see: sudo nvpmodel -q"
            raise PowerdRefusal("failed", text)
        preset = find_preset(self._list_presets(present), name_or_id)
        check_preset(preset, self.tables(), self._config)
        state = self._read_state()
        before = knob_changes.make_snapshot(state, present)
        first(mode_from_state(state, self._hardware), {"nvpmodel": present})
        try:
            self._switch_preset(preset.id)
            self._check_preset_applied(preset.id)
            return self.mode()
        except (WriteNotApplied, OSError, PowerdRefusal) as error:
            raise self._undo(before, error) from error

    def put_back(self, snapshot: Snapshot) -> List[str]:
        """Restore a snapshot, or the parts that it has; never raises.

        Returns:
            Descriptions of what could not be restored.
        """
        work = StateRestore(self._machine, self._hardware, snapshot)
        work.attempt("nvpmodel", lambda: self._restore_preset(snapshot.get("nvpmodel")))
        work.run()
        work.attempt("fan", lambda: self._restore_fan(snapshot.get("fan")))
        return work.left

    def temperatures(self) -> Dict[str, float]:
        """Return the temperature of each zone in degrees C; empty on a board that never had any zone.

        Raises:
            PowerdRefusal: Of kind sensor-lost.
        """
        found = thermal_guard.read_temperatures(self._machine, self._config.needed_zones)
        if self._had_zones and not found:
            text = f"all thermal zones are gone from {thermal_guard.ZONES}; look at dmesg, or reboot"
            raise PowerdRefusal("sensor-lost", text)
        return found

    def drop_caches(self) -> None:
        """Drop the kernel's clean page cache.

        Dirty pages are not written out first: that may take minutes and needs no root, so it is left to the caller.

        Raises:
            PowerdRefusal: Of kind failed.
        """
        try:
            self._machine.write(DROP_CACHES, "3")
        except OSError as error:
            text = f"{DROP_CACHES}: {error.strerror or error}; run as root on the board"
            raise PowerdRefusal("failed", text) from error

    def set_fan(self, percent: float, first: Callable[[SideState], None] = _do_nothing) -> None:
        """Set the fan's speed.

        Args:
            percent: Speed from 0 to 100.
            first: Called with the previous speed when all is checked, before the write.

        Raises:
            PowerdRefusal: Of kind not-allowed or failed; did-not-stick after the previous speed was restored.
        """
        path = find_fan_file(self._machine)
        if path is None:
            raise PowerdRefusal("not-allowed", "this board has no fan that can be set")
        before = try_read_int(self._machine, path)
        if before is None:
            unread = f"{path} cannot be read, so the speed before could not be put back; look at dmesg"
            raise PowerdRefusal("failed", unread)
        write = plan_write(path, round(percent * FAN_FULL_PWM / 100))
        if before == write.value:
            return
        first({"fan": before})
        try:
            knob_changes.write_all(self._machine, [write])
        except WriteNotApplied as error:
            text = f"{error.text}; is another fan service running?"
            left: List[str] = []
            try:
                knob_changes.write_all(self._machine, [plan_write(path, before)])
            except WriteNotApplied as again:
                left = [f"fan: {again.text}"]
                text += f" The speed before is not set again: {again.text}"
            raise PowerdRefusal("did-not-stick", text, error.got, left) from error

    def _read_state(self) -> KnobState:
        try:
            return read_state(self._machine, self._hardware)
        except OSError as error:
            raise PowerdRefusal("failed", f"the board's state cannot be read: {error}") from error

    def _read_conf(self) -> nvpmodel.NvpConf:
        return nvpmodel.parse_conf(try_read_text(self._machine, nvpmodel.CONF))

    def _list_presets(self, present: Optional[int]) -> List[Preset]:
        return list(nvpmodel.list_presets(self._machine, self._read_conf(), present, self._hardware))

    def _query_preset_id(self) -> Optional[int]:
        try:
            return nvpmodel.query_preset_id(self._machine)
        except PowerdRefusal:
            return None  # in a container no preset can be set, so none has to be put back

    def _switch_preset(self, preset_id: int) -> None:
        knob_changes.release_limits(self._machine, self._hardware)
        nvpmodel.switch_preset(self._machine, preset_id)
        now = nvpmodel.query_preset_id(self._machine)
        if now != preset_id:
            raise WriteNotApplied(f"nvpmodel -m {preset_id} ended well, but nvpmodel -q says {now}", now)

    def _check_preset_applied(self, preset_id: int) -> None:
        conf = self._read_conf()
        model = nvpmodel.find_model(conf, preset_id)
        if model is None:
            return
        unmet = nvpmodel.find_unmet(nvpmodel.read_caps(conf, model), self._read_state(), self._hardware)
        if unmet is not None:
            raise WriteNotApplied(f"nvpmodel -m {preset_id} ended well, but {unmet[0]} reads back {unmet[1]}", unmet[1])

    def _restore_preset(self, preset_id: Optional[int]) -> None:
        now = nvpmodel.query_preset_id(self._machine) if preset_id is not None else None
        if preset_id is None or now == preset_id:
            return
        preset = next((preset for preset in self._list_presets(now) if preset.id == preset_id), None)
        if preset is None or preset.needs_reboot:
            state = "gone" if preset is None else "not to be had without a reboot"
            raise WriteNotApplied(f"preset {preset_id} is {state}")
        self._switch_preset(preset_id)

    def _restore_fan(self, before: Optional[int]) -> None:
        if before is None:
            return
        path = find_fan_file(self._machine)
        if path is None:
            raise WriteNotApplied(f"the fan's file is gone; it was at {before} of {FAN_FULL_PWM}")
        if try_read_int(self._machine, path) != int(before):
            knob_changes.write_all(self._machine, [plan_write(path, int(before))])

    def _undo(self, before: Snapshot, error: Exception) -> PowerdRefusal:
        """Restore the previous state and return the refusal that reports it."""
        left = self.put_back(before)
        ending = f"NOT put back: {'; '.join(left)}" if left else "the state before is set again"
        kind = error.kind if isinstance(error, PowerdRefusal) and error.kind != "failed" else "did-not-stick"
        return PowerdRefusal(kind, f"{error}; {ending}", getattr(error, "got", None), left)


def find_fan_file(machine: Machine) -> Optional[str]:
    """Return the fan's control file; None if there is no fan."""
    if machine.exists(FAN_TARGET_PWM):
        return FAN_TARGET_PWM
    folders = machine.glob(FAN_HWMON)
    fans = [folder for folder in folders if machine.exists(f"{folder}/pwm1")]
    named = [folder for folder in fans if "fan" in try_read_text(machine, f"{folder}/name")]
    return f"{(named or fans)[0]}/pwm1" if fans else None
