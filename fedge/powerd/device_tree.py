"""Identity of the board: the device tree's model and compatible names, and the L4T release."""

import re
from typing import List, NamedTuple

from fedge.powerd.control_values import try_read_text
from fedge.powerd.machine import Machine
from fedge.powerd.mode_records import PowerdRefusal

TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
RELEASE = "/etc/nv_tegra_release"


class DeviceTreeIdentity(NamedTuple):
    """Identity of a board.

    Attributes:
        model: Model name from the device tree.
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
            return DeviceTreeIdentity(model, compatible, _parse_release(try_read_text(machine, RELEASE)))
    raise PowerdRefusal(
        "failed",
        f"this machine is no Jetson: its device tree says {(model or 'nothing')[:80]!r}; "
        "fedge-powerd runs on the board itself, as root",
    )


def _parse_release(text: str) -> str:
    found = re.search(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text)
    return f"{found.group(1)}.{found.group(2)}" if found else ""
