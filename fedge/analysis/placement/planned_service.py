"""The plan of ``fedge place --out`` as the standing service of a fleet entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedge.costs.layers.network_source import MODEL_FILES
from fedge.errors import BadInput, one_line
from fedge.experiment import PlacedBatchSpec
from fedge.json_reader import read_json

PLACEMENT_FORMAT = "fedge-placement-1"


def read_planned_service(path: Path, where: str) -> dict[str, Any]:
    """Return the keys of ``serving`` that a plan gives: network, rate, batch size and the planned batch.

    A board of a run does one thing at a time: only a plan of one instance on the GPU can be its service.

    Raises:
        BadInput: It is no plan, or one of several instances or of a DLA, which would work beside the training.
    """
    right = "a file that `fedge place NETWORK --board BOARD --out FILE` wrote"
    try:
        plan = read_json(path, right)
    except BadInput as error:
        raise BadInput(where, f"{path}, {error.got}", right) from error
    try:
        if plan["format"] != PLACEMENT_FORMAT:
            raise BadInput(where, f"{path} of the format {plan['format']}", right)
        chosen, instances = plan["chosen"], plan["chosen"]["placement"]
        if len(instances) > 1 or instances[0]["accelerator"].startswith("dla"):
            used = " + ".join(one["accelerator"] for one in instances)
            usable = (
                "one instance on the GPU, which takes turns with the training: --on cuda-cores or --on tensor-cores"
            )
            raise BadInput(where, f"{path} with {used}", usable)
        planned_batch = PlacedBatchSpec(
            **{key: instances[0][key] for key in ("accelerator", "precision", "batch_size")},
            device=plan["device"],
            network=plan["model"],
            input=plan["input"],
            batch_s=chosen["instances"][0]["batch_s"],
            power_w=chosen["full_load_w"],
            rate_hz=chosen["rate_hz"],
            label=plan["label"],
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(where, f"{path} with {first['loc'][0]} {first['input']!r}", right) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(where, f"{path} ({one_line(error)})", right) from error
    return _to_serving_keys(planned_batch)


def _to_serving_keys(planned_batch: PlacedBatchSpec) -> dict[str, Any]:
    model, rate_hz = planned_batch.network, planned_batch.rate_hz
    return {
        **({} if rate_hz is None else {"rate_hz": rate_hz}),
        "network": {"model": model, "input": None if model.endswith(MODEL_FILES) else planned_batch.input},
        "batch_sizes": [planned_batch.batch_size],
        "placed": planned_batch.model_dump(),
    }
