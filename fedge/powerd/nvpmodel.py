"""Stock power modes: nvpmodel's file, its query and its switch, which may exit with 0 and do nothing."""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from fedge.powerd.knobs import Hardware, KnobState, highest_at_most
from fedge.powerd.machine import Machine, try_read_text
from fedge.powerd.mode_records import Mode, PowerdRefusal, Preset

CONF = "/etc/nvpmodel.conf"
STATUS = "/var/lib/nvpmodel/status"
HEADER = re.compile(r"<\s*(\w+)(.*)>$")
FIELD = re.compile(r"(\w+)=(\"[^\"]*\"|\S+)")
CONTAINER = re.compile(r"running in chroot|ignoring request", re.IGNORECASE)
REBOOT = re.compile(r"reboot|golden image context", re.IGNORECASE)
UNCAPPED = 0
LONGEST_LINE, LONGEST_NUMBER = 1000, 20
"""Characters of a line and of a number that are read; NVIDIA's have 100 and 19."""


class NvpModel(NamedTuple):
    """One POWER_MODEL; ``values`` by (section, key), as written in the file."""

    id: int
    name: str
    values: Dict[Tuple[str, str], str]


class NvpConf(NamedTuple):
    """Content of nvpmodel's file; ``paths`` by (section, key)."""

    paths: Dict[Tuple[str, str], str]
    models: Tuple[NvpModel, ...]
    default: Optional[int]


class PresetCaps(NamedTuple):
    """A preset's settings of the four knobs: None if it has none, UNCAPPED for no cap.

    Attributes:
        online: Whether each core is on, by core number.
        cpu_khz: CPU caps in kHz, by core number.
    """

    online: Dict[int, bool]
    cpu_khz: Dict[int, int]
    gpu_hz: Optional[int]
    emc_hz: Optional[int]


def parse_conf(text: str) -> NvpConf:
    """Parse the file's PARAM, POWER_MODEL and PM_CONFIG parts; unknown parts are ignored."""
    paths: Dict[Tuple[str, str], str] = {}
    models: List[NvpModel] = []
    default: Optional[int] = None
    section, fields = "", {}  # type: Tuple[str, Dict[str, str]]
    lines = (" ".join(raw[:LONGEST_LINE].split()) for raw in text.splitlines())
    for line in filter(str.isprintable, lines):
        header, words = HEADER.match(line), line.split()
        if header:
            section, fields = header.group(1), {key: value.strip('"') for key, value in FIELD.findall(header.group(2))}
            number = _parse_number(fields.get("ID"))
            if section == "POWER_MODEL" and number is not None:
                models.append(NvpModel(number, fields.get("NAME", f"MODE_{number}"), {}))
            elif section == "PM_CONFIG":
                default = _parse_number(fields.get("DEFAULT"))
        elif line.startswith("#"):
            continue
        elif section == "PARAM" and len(words) >= 2:
            paths[fields.get("NAME", ""), words[0]] = words[1]
        elif section == "POWER_MODEL" and len(words) >= 3 and models:
            models[-1].values[words[0], words[1]] = words[2]
    return NvpConf(paths, tuple(models), default)


def _parse_number(text: Optional[str]) -> Optional[int]:
    try:
        return int(text, 0) if text is not None and len(text) <= LONGEST_NUMBER else None
    except ValueError:
        return None


def gating_masks(model: NvpModel) -> Dict[Tuple[str, str], str]:
    """Return the power-gating values: TPC and FBP masks and the GPU's power control."""
    parts = ("PG_MASK", "POWER_GATING", "POWER_CONTROL")
    return {key: value for key, value in model.values.items() if any(part in name for name in key for part in parts)}


def needs_reboot(machine: Machine, conf: NvpConf, model: NvpModel, present: Optional[NvpModel]) -> bool:
    """Return whether a mask of the preset differs from the present preset's, or else from the control file's."""
    now = gating_masks(present) if present is not None else {}
    for key, value in gating_masks(model).items():
        found = now.get(key)
        if found is None:
            found = try_read_text(machine, conf.paths.get(key, "/nonexistent"))
        if found != value and (_parse_number(found) is None or _parse_number(found) != _parse_number(value)):
            return True
    return False


def read_caps(conf: NvpConf, model: NvpModel) -> PresetCaps:
    """Return the knob settings of a preset."""
    found = PresetCaps({}, {}, None, None)
    for (section, key), text in model.values.items():
        value = _parse_number(text)
        path = conf.paths.get((section, key), "") or conf.paths.get((section, f"{key}_KNEXT"), "")
        core = re.search(r"/cpu(\d{1,4})/|/policy(\d{1,4})/", path)
        if value is None:
            continue
        if section == "CPU_ONLINE":
            name = re.search(r"\d{1,4}", key)
            number = core.group(1) if core else name.group() if name else "0"
            found.online[int(number)] = value == 1
        elif key == "MAX_FREQ" and core:
            found.cpu_khz[int(core.group(1) or core.group(2))] = max(value, UNCAPPED)
        elif (section, key) == ("GPU", "MAX_FREQ"):
            found = found._replace(gpu_hz=max(value, UNCAPPED))
        elif (section, key) == ("EMC", "MAX_FREQ"):
            found = found._replace(emc_hz=max(value, UNCAPPED))
    return found


def mode_from_caps(what: PresetCaps, hardware: Hardware) -> Mode:
    """Return a preset's caps as the nearest table values, to which nvpmodel and the kernel round.

    Its CPU cap is that of its lowest core's cluster. Core 0 is always on, and some files do not name it.
    """
    tables = hardware.tables()
    cpu = what.cpu_khz[min(what.cpu_khz)] if what.cpu_khz else None
    return Mode(
        sum({**what.online, 0: True}.values()) if what.online else None,
        _snap_cap(tables.cpu_khz, cpu),
        _snap_cap(tables.gpu_hz, what.gpu_hz),
        _snap_cap(tables.emc_hz, what.emc_hz),
    )


def _snap_cap(table: Tuple[int, ...], cap: Optional[int]) -> Optional[int]:
    if not table or cap is None or cap == UNCAPPED:
        return None
    return min(table, key=lambda value: (abs(value - cap), value))


def list_presets(machine: Machine, conf: NvpConf, present: Optional[int], hardware: Hardware) -> Tuple[Preset, ...]:
    """Return all presets; ``present`` is the id of the current one."""
    now = find_model(conf, present)
    return tuple(
        Preset(
            model.id,
            name=model.name,
            mode=mode_from_caps(read_caps(conf, model), hardware),
            needs_reboot=needs_reboot(machine, conf, model, now),
            default=model.id == conf.default,
        )
        for model in conf.models
    )


def find_model(conf: NvpConf, preset_id: Optional[int]) -> Optional[NvpModel]:
    """Return the model with this id, or None."""
    return next((model for model in conf.models if model.id == preset_id), None)


def query_preset_id(machine: Machine) -> Optional[int]:
    """Return the id of the current preset, from ``nvpmodel -q`` or else from its status file.

    Returns:
        The id, or None if neither reports one.

    Raises:
        PowerdRefusal: Of kind container, if nvpmodel says that it ignores requests.
    """
    try:
        _code, output = machine.run(["nvpmodel", "-q"])
    except OSError:
        output = ""
    _refuse_container(output)
    found = re.search(r"NV Power Mode:[^\n]*\n\s*(\d{1,9})\s*$", output, re.MULTILINE)
    found = found or re.search(r"^pmode:(\d{1,9})\b", try_read_text(machine, STATUS))
    return int(found.group(1)) if found else None


def switch_preset(machine: Machine, preset_id: int) -> None:
    """Set a stock mode; the caller must read back the result.

    nvpmodel's question whether to reboot finds no input, so it is never answered.

    Raises:
        PowerdRefusal: Of kind container, reboot-needed or did-not-stick.
    """
    try:
        code, output = machine.run(["nvpmodel", "-m", str(preset_id)])
    except OSError as error:
        raise PowerdRefusal("did-not-stick", f"nvpmodel -m {preset_id}: {error}") from error
    _refuse_container(output)
    if REBOOT.search(output):
        text = f"nvpmodel asks for a reboot to set mode {preset_id}; nothing here reboots: set it by hand and reboot"
        raise PowerdRefusal("reboot-needed", text, output[-300:])
    if code:
        text = f"nvpmodel -m {preset_id} ended with {code}: {output.strip()[-200:]!r}"
        raise PowerdRefusal("did-not-stick", text, output[-300:])


def _refuse_container(output: str) -> None:
    if CONTAINER.search(output):
        text = "nvpmodel runs in a container and ignores requests; run fedge-powerd on the board itself"
        raise PowerdRefusal("container", text, output[-300:])


def find_unmet(what: PresetCaps, state: KnobState, hardware: Hardware) -> Optional[Tuple[str, int]]:
    """Return the first knob that differs from the preset, with its value; None if all match.

    nvpmodel rounds silently, so either table value beside a cap is accepted. Offline clusters are skipped.
    """
    for core, on in what.online.items():
        if core in state.online and state.online[core] != on:
            return f"core {core} online", int(state.online[core])
    found = [(f"{p.name} kHz", p.span.high, what.cpu_khz.get(p.core), p.table) for p in state.policies]
    gpu = hardware.gpu()
    if gpu is not None:
        found.append((f"{gpu.name} Hz", state.gpus[gpu.name].high + gpu.files.slack, what.gpu_hz, gpu.table))
    if hardware.emc_files.cap:
        highest = max([*hardware.emc_hz, what.emc_hz or 0])
        cap_hz = state.emc.cap_hz if state.emc.cap_hz > 0 else highest
        found.append(("emc cap Hz", cap_hz, what.emc_hz, hardware.emc_hz))
    return next(((name, high) for name, high, cap, table in found if not _meets_cap(high, cap, table)), None)


def _meets_cap(high: int, cap: Optional[int], table: Tuple[int, ...]) -> bool:
    if cap is None or not table:
        return True
    if cap == UNCAPPED:
        return high >= table[-1]
    above = [value for value in table if value >= cap]
    return min(highest_at_most(table, cap), cap) <= high <= (above[0] if above else max(table[-1], cap)) + 999
