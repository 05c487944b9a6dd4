"""Stock power modes: nvpmodel's file, its query and its switch, which may exit 0 and do nothing."""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from fedge.powerd.knobs import Hardware, State
from fedge.powerd.machine import Machine
from fedge.powerd.mode import Mode, Preset, Refused
from fedge.powerd.reading import at_or_below, maybe_text, nearest

CONF = "/etc/nvpmodel.conf"
STATUS = "/var/lib/nvpmodel/status"
HEADER = re.compile(r"<\s*(\w+)\s*(.*?)\s*>\s*$")
FIELD = re.compile(r"(\w+)=(\"[^\"]*\"|\S+)")
CONTAINER = re.compile(r"running in chroot|ignoring request", re.IGNORECASE)
REBOOT = re.compile(r"reboot|golden image context", re.IGNORECASE)
UNCAPPED = 0


class Model(NamedTuple):
    """One POWER_MODEL; ``values`` by (section, key), as written in the file."""

    id: int
    name: str
    values: Dict[Tuple[str, str], str]


class Conf(NamedTuple):
    """nvpmodel's file; ``paths`` by (section, key)."""

    paths: Dict[Tuple[str, str], str]
    models: Tuple[Model, ...]
    default: Optional[int]


class Caps(NamedTuple):
    """What a preset sets of the four knobs: None where it says nothing, UNCAPPED for no cap; CPU caps by core."""

    online: Dict[int, bool]
    cpu_khz: Dict[int, int]
    gpu_hz: Optional[int]
    emc_hz: Optional[int]


def parse(text: str) -> Conf:
    """Reads the file's PARAM, POWER_MODEL and PM_CONFIG parts; what it does not know is passed over."""
    conf = Conf({}, (), None)
    section, fields = "", {}  # type: Tuple[str, Dict[str, str]]
    for line in (raw.strip() for raw in text.splitlines()):
        header = HEADER.match(line)
        if header:
            section, fields = header.group(1), {key: value.strip('"') for key, value in FIELD.findall(header.group(2))}
            conf = _opened(conf, section, fields)
        elif line and not line.startswith("#"):
            _take(conf, section, fields, line.split())
    return conf


def _opened(conf: Conf, section: str, fields: Dict[str, str]) -> Conf:
    if section == "POWER_MODEL" and _number(fields.get("ID")) is not None:
        model = Model(int(fields["ID"]), fields.get("NAME", f"MODE_{fields['ID']}"), {})
        return conf._replace(models=(*conf.models, model))
    if section == "PM_CONFIG":
        return conf._replace(default=_number(fields.get("DEFAULT")))
    return conf


def _take(conf: Conf, section: str, fields: Dict[str, str], words: List[str]) -> None:
    if section == "PARAM" and len(words) >= 2:
        conf.paths[fields.get("NAME", ""), words[0]] = words[1]
    elif section == "POWER_MODEL" and len(words) >= 3 and conf.models:
        conf.models[-1].values[words[0], words[1]] = words[2]


def _number(text: Optional[str]) -> Optional[int]:
    try:
        return int(text, 0) if text is not None else None
    except ValueError:
        return None


def masks(model: Model) -> Dict[Tuple[str, str], str]:
    """The power-gating values: TPC and FBP masks and the GPU's power control."""
    parts = ("PG_MASK", "POWER_GATING", "POWER_CONTROL")
    return {key: value for key, value in model.values.items() if any(part in name for name in key for part in parts)}


def needs_reboot(machine: Machine, conf: Conf, model: Model, present: Optional[Model]) -> bool:
    """Whether a mask of the preset differs from the present preset's; where that is unknown, from the file itself."""
    now = masks(present) if present is not None else {}
    for key, value in masks(model).items():
        found = now.get(key)
        if found is None:
            found = maybe_text(machine, conf.paths.get(key, "/nonexistent"))
        if found != value and (_number(found) is None or _number(found) != _number(value)):
            return True
    return False


def caps(conf: Conf, model: Model) -> Caps:
    """What a preset does to the knobs."""
    found = Caps({}, {}, None, None)
    for (section, key), text in model.values.items():
        value = _number(text)
        path = conf.paths.get((section, key), "") or conf.paths.get((section, f"{key}_KNEXT"), "")
        core = re.search(r"/cpu(\d+)/|/policy(\d+)/", path)
        if value is None:
            continue
        if section == "CPU_ONLINE":
            name = re.search(r"\d+", key)
            number = core.group(1) if core else name.group() if name else "0"
            found.online[int(number)] = value == 1
        elif key == "MAX_FREQ" and core:
            found.cpu_khz[int(core.group(1) or core.group(2))] = max(value, UNCAPPED)
        elif (section, key) == ("GPU", "MAX_FREQ"):
            found = found._replace(gpu_hz=max(value, UNCAPPED))
        elif (section, key) == ("EMC", "MAX_FREQ"):
            found = found._replace(emc_hz=max(value, UNCAPPED))
    return found


def mode(what: Caps, hardware: Hardware) -> Mode:
    """A preset's caps as the nearest table values, to which nvpmodel and the kernel round.

    Its CPU cap is that of its lowest core's cluster. Core 0 is always on, and some files do not name it.
    """
    tables = hardware.tables()
    cpu = what.cpu_khz[min(what.cpu_khz)] if what.cpu_khz else None
    return Mode(
        sum({**what.online, 0: True}.values()) if what.online else None,
        _cap(tables.cpu_khz, cpu),
        _cap(tables.gpu_hz, what.gpu_hz),
        _cap(tables.emc_hz, what.emc_hz),
    )


def _cap(table: Tuple[int, ...], cap: Optional[int]) -> Optional[int]:
    return nearest(table, cap) if table and cap is not None and cap != UNCAPPED else None


def presets(machine: Machine, conf: Conf, present: Optional[int], hardware: Hardware) -> Tuple[Preset, ...]:
    """All presets as records; ``present`` is the id that is set now."""
    now = model_of(conf, present)
    return tuple(
        Preset(
            model.id,
            model.name,
            mode(caps(conf, model), hardware),
            needs_reboot(machine, conf, model, now),
            model.id == conf.default,
        )
        for model in conf.models
    )


def model_of(conf: Conf, preset_id: Optional[int]) -> Optional[Model]:
    """The model with this id."""
    return next((model for model in conf.models if model.id == preset_id), None)


def query(machine: Machine) -> Optional[int]:
    """The id that is set now: from ``nvpmodel -q``, else from its status file; None where neither tells.

    Raises ``Refused`` (container) where nvpmodel says that it ignores requests.
    """
    try:
        _code, output = machine.run(["nvpmodel", "-q"])
    except OSError:
        output = ""
    _refuse_container(output)
    found = re.search(r"NV Power Mode:[^\n]*\n\s*(\d+)\s*$", output, re.MULTILINE)
    found = found or re.search(r"^pmode:(\d+)", maybe_text(machine, STATUS))
    return int(found.group(1)) if found else None


def switch(machine: Machine, preset_id: int) -> None:
    """Sets a stock mode; what it did must be read back. Raises ``Refused`` (container, reboot-needed, did-not-stick).

    Its question whether to reboot finds no input, so it is never answered.
    """
    try:
        code, output = machine.run(["nvpmodel", "-m", str(preset_id)])
    except OSError as error:
        raise Refused("did-not-stick", f"nvpmodel -m {preset_id}: {error}") from error
    _refuse_container(output)
    if REBOOT.search(output):
        text = f"nvpmodel asks for a reboot to set mode {preset_id}; nothing here reboots: set it by hand and reboot"
        raise Refused("reboot-needed", text, output[-300:])
    if code:
        text = f"nvpmodel -m {preset_id} ended with {code}: {output.strip()[-200:]!r}"
        raise Refused("did-not-stick", text, output[-300:])


def _refuse_container(output: str) -> None:
    if CONTAINER.search(output):
        text = "nvpmodel runs in a container and ignores requests; run fedge-powerd on the board itself"
        raise Refused("container", text, output[-300:])


def unmet(what: Caps, state: State, hardware: Hardware) -> Optional[Tuple[str, int]]:
    """The first knob that is not as the preset says, and what it is; None where all is well.

    nvpmodel rounds silently, so either table value beside a cap is right. Clusters that are off are passed over.
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
        found.append(
            ("emc cap Hz", state.emc.cap_hz if state.emc.cap_hz > 0 else highest, what.emc_hz, hardware.emc_hz)
        )
    return next(((name, high) for name, high, cap, table in found if not _held(high, cap, table)), None)


def _held(high: int, cap: Optional[int], table: Tuple[int, ...]) -> bool:
    if cap is None or not table:
        return True
    if cap == UNCAPPED:
        return high >= table[-1]
    above = [value for value in table if value >= cap]
    return min(at_or_below(table, cap), cap) <= high <= (above[0] if above else max(table[-1], cap)) + 999
