"""Which board this is: the device tree's model and compatible names, and the L4T release."""

import re
from typing import Dict, List, NamedTuple

from fedge.powerd.machine import Machine
from fedge.powerd.mode import Refused
from fedge.powerd.reading import maybe_text

TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
RELEASE = "/etc/nv_tegra_release"


class Identity(NamedTuple):
    """``l4t`` is like "35.4.1", empty where the board does not tell."""

    model: str
    compatible: List[str]
    l4t: str

    def wire(self) -> Dict[str, object]:
        """As it travels."""
        return dict(self._asdict())


def identify(machine: Machine) -> Identity:
    """Raises ``Refused`` (failed) on a machine that is no Jetson."""
    for tree in TREES:
        model = maybe_text(machine, f"{tree}/model")
        compatible = [name for name in maybe_text(machine, f"{tree}/compatible").split("\0") if name.strip()]
        if "jetson" in model.lower() or any(name.startswith("nvidia,tegra") for name in compatible):
            return Identity(model, compatible, _release(maybe_text(machine, RELEASE)))
    raise Refused(
        "failed",
        f"this machine is no Jetson: its device tree says {(model or 'nothing')[:80]!r}; "
        "fedge-powerd runs on the board itself, as root",
    )


def _release(text: str) -> str:
    found = re.search(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text)
    return f"{found.group(1)}.{found.group(2)}" if found else ""
