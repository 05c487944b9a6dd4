"""An archive of a board's control files and sensors, with which code can be tested without the board.

Only listed files are included; serial numbers, host names, addresses and keys are not. The archive contains plain files
without links, each below ``root/`` at its path on the board.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.atomic_files import replace_file
from fedge.errors import BadInput, refuse_unwritable
from fedge.powerd.machine import BOOT_ID, Machine

CPU, GPU, BPMP = "/sys/devices/system/cpu", "/sys/class/devfreq/*", "/sys/kernel/debug/bpmp/debug"
FILE_PATTERNS: Sequence[str] = (
    "/proc/device-tree/model",
    "/proc/device-tree/compatible",
    "/proc/meminfo",
    "/proc/stat",
    "/etc/nv_tegra_release",
    "/etc/nvpmodel.conf",
    "/var/lib/nvpmodel/status",
    f"{CPU}/online",
    f"{CPU}/possible",
    f"{CPU}/present",
    f"{CPU}/cpu[0-9]*/online",
    f"{CPU}/cpufreq/policy*/*",
    *(f"{GPU}/{name}" for name in ("min_freq", "max_freq", "cur_freq", "available_frequencies", "governor", "name")),
    f"{GPU}/device/of_node/name",
    f"{GPU}/device/load",
    f"{GPU}/device/*pg_mask*",
    "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
    "/sys/kernel/nvpmodel_clk_cap/*",
    *(f"{BPMP}/clk/emc/{name}" for name in ("rate", "min_rate", "max_rate", "mrq_rate_locked", "state")),
    f"{BPMP}/emc/possible_rates",
    "/sys/kernel/debug/clk/override.emc/*",
    "/sys/kernel/debug/tegra_bwmgr/emc_*",
    "/sys/kernel/debug/cactmon/*",
    "/sys/kernel/actmon_avg_activity/*",
    "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/*_[0-9]*",
    "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/*_input",
    "/sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*/*",
    "/sys/class/hwmon/hwmon*/name",
    "/sys/class/hwmon/hwmon*/*_label",
    "/sys/class/hwmon/hwmon*/*_input",
    "/sys/class/hwmon/hwmon*/oc*",
    "/sys/class/hwmon/hwmon*/pwm*",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/class/thermal/thermal_zone*/temp",
    "/sys/devices/pwm-fan/*",
)
FOLDER_PATTERNS: Sequence[str] = (f"{CPU}/cpu[0-9]*",)
"""Folders whose existence matters: on some kernels the first core has no file of its own."""
NO_BOOT_ID = "00000000-0000-0000-0000-000000000000"
MAX_FILE_BYTES = 1 << 16
_SERIAL = re.compile(rb"(?i)(serial(?:[ _-]?number)?\s*[:=]\s*)\S+")
_NVPMODEL_QUERY = ("nvpmodel", "-q", "--verbose")
_NVPMODEL_SCRIPT = """#!/bin/sh
# What the board's own nvpmodel said when it was recorded; it cannot set anything.
case "$1" in
    -q) cat "$(dirname "$0")/nvpmodel.recorded" ;;
    *) echo "NVPM ERROR: recorded, cannot set" >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True, slots=True)
class BoardArchive:
    """Paths of the archived files, and of those that could not be read, with the reason."""

    taken: tuple[str, ...]
    unreadable: tuple[str, ...]


def write_board_archive(machine: Machine, archive: Path) -> BoardArchive:
    """Write a board's files to an archive, atomically.

    Raises:
        BadInput: The machine is not a Jetson, or the archive cannot be written.
    """
    contents, unreadable = _read_contents(machine)
    if "/proc/device-tree/compatible" not in contents and "/etc/nv_tegra_release" not in contents:
        raise BadInput(machine.root, "a machine that is no Jetson", "run it on the board, or name a board's root")
    contents[BOOT_ID] = NO_BOOT_ID.encode()
    with refuse_unwritable(archive, "the path of a .tar.gz"):
        _write_archive(
            archive,
            {**contents, **_record_nvpmodel(machine)},
            [path for each in FOLDER_PATTERNS for path in machine.glob(each)],
        )
    return BoardArchive(tuple(sorted(contents)), tuple(unreadable))


def _read_contents(machine: Machine) -> tuple[dict[str, bytes], list[str]]:
    contents: dict[str, bytes] = {}
    unreadable = []
    for path in _list_paths(machine):
        try:
            with machine.path(path).open("rb") as file:
                contents[path] = _SERIAL.sub(rb"\1REMOVED", file.read(MAX_FILE_BYTES))
        except OSError as error:
            unreadable.append(f"{path}: {error.strerror}")
    return contents, unreadable


def _list_paths(machine: Machine) -> Iterator[str]:
    """List every file that matches a pattern, once."""
    paths = dict.fromkeys(path for pattern in FILE_PATTERNS for path in machine.glob(pattern))
    return (path for path in paths if machine.path(path).is_file())


def _record_nvpmodel(machine: Machine) -> dict[str, bytes]:
    """Return the output of ``nvpmodel -q`` and a script that repeats it; empty without nvpmodel."""
    try:
        code, output = machine.run(_NVPMODEL_QUERY)
    except OSError:
        return {}
    if code != 0:
        return {}
    return {"/usr/sbin/nvpmodel": _NVPMODEL_SCRIPT.encode(), "/usr/sbin/nvpmodel.recorded": output.encode()}


def _write_archive(archive: Path, contents: dict[str, bytes], folders: Sequence[str]) -> None:
    with replace_file(archive) as part, tarfile.open(part, "w:gz") as tar:
        for path in folders:
            folder = tarfile.TarInfo(f"root{path}")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path, content in sorted(contents.items()):
            entry = tarfile.TarInfo(f"root{path}")
            entry.size, entry.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
