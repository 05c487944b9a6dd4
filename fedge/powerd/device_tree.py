"""Identity of the board: the device tree's model and compatible names, and the L4T release."""

import re
from typing import List, NamedTuple

from fedge.powerd.machine import Machine, try_read_text
from fedge.powerd.mode_records import PowerdRefusal

TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
RELEASE = "/etc/nv_tegra_release"
L4T = re.compile(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)")


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
            found = L4T.search(try_read_text(machine, RELEASE))
            return DeviceTreeIdentity(model, compatible, f"{found.group(1)}.{found.group(2)}" if found else "")
    text = f"this machine is no Jetson: its device tree says {(model or 'nothing')[:80]!r}"
    raise PowerdRefusal("failed", f"{text}; fedge-powerd runs on the board itself, as root")
