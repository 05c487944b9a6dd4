"""The plan of ``fedge place --json`` as the standing service of a fleet entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedge.devices.catalogue import find
from fedge.errors import BadInput

PLACEMENT_FORMAT = "fedge-placement-1"


def read_planned_service(path: Path, where: str) -> dict[str, Any]:
    """Return the keys of ``serving`` that a plan gives: network, rate, batch size and the planned batch.

    A board of a run does one thing at a time: only a plan of one instance on the GPU can be its service.

    Args:
        path: The plan's file.
        where: Field that names it.

    Raises:
        BadInput: It is no plan, or one of several instances or of a DLA, which would work beside the training.
    """
    right = "a file that `fedge place MODEL --device BOARD --json FILE` wrote"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        if plan["format"] != PLACEMENT_FORMAT:
            raise BadInput(where, f"{path} of the format {plan['format']}", right)
        chosen, instances = plan["chosen"], plan["chosen"]["placement"]
        only = instances[0]
        if len(instances) > 1 or only["accelerator"].startswith("dla"):
            used = " + ".join(one["accelerator"] for one in instances)
            alone = "one instance on the GPU, which takes turns with the training: --on cuda-cores or --on tensor-cores"
            raise BadInput(where, f"{path} with {used}", alone)
        given = {} if chosen["rate_hz"] is None else {"rate_hz": chosen["rate_hz"]}
        return {
            **given,
            "network": plan["model"],
            "batch_sizes": [only["batch_size"]],
            "placed": {
                "device": plan["device"],
                "accelerator": only["accelerator"],
                "precision": only["precision"],
                "batch_s": chosen["instances"][0]["batch_s"],
                "power_w": _full_load_w(chosen, find(plan["device"], where=where).idle_w.value),
                "label": plan["label"],
            },
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(where, f"{path} ({' '.join(str(error).split())[:100]})", right) from error


def _full_load_w(chosen: dict[str, Any], idle_w: float) -> float:
    """Return the power of the board while it infers without a pause; the plan has the mean at its rate."""
    load = 1.0 if chosen["rate_hz"] is None else chosen["rate_hz"] / chosen["images_per_s"]
    return float(idle_w + (chosen["power_w"] - idle_w) / load)
