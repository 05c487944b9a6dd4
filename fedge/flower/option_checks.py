"""Checks of what the user of a plain Flower app gives to ``power_mode`` and ``PowerAware``, in their own words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedge.costs.cost_scaling import list_priced_workloads
from fedge.costs.layers.network_source import check_network_name
from fedge.decisions.planning import JOINT_POLICY
from fedge.decisions.policies import is_builtin_policy, load_policy
from fedge.decisions.policies.policy_options import check_policy_options
from fedge.devices import catalogue
from fedge.errors import BadInput, UnknownName, check_known, list_known
from fedge.experiment import PolicySpec
from fedge.predictors import PREDICTORS
from fedge.registry import check_own_name
from fedge.yaml_files import validate_fields

EMULATED_PREFIX = "emulated:"
OWN_BOARDS = ("auto", "jetson", "gpu")
"""Devices that stand for the machine on which the node runs."""
MOD, WRAPPER = "power_mode", "PowerAware"
"""Names of the two in messages."""


class ModArguments(BaseModel):
    """Arguments of ``power_mode`` whose form and range are checked; see there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    device: Annotated[tuple[str, ...], Field(min_length=1)]
    cost: str | None
    network: str | None
    input_shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] | None
    batch_size: Annotated[int, Field(ge=1, strict=True)]
    predictor: str
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]


MOD_KEYWORDS = (*ModArguments.model_fields, "knowledge")
POLICY_KEYWORDS = tuple(field for field in PolicySpec.model_fields if field not in ("name", "options"))


def check_mod_arguments(
    given: Mapping[str, object], limits: Mapping[str, float], knowledge: object = None
) -> ModArguments:
    """Check the arguments of ``power_mode`` as far as that is possible before a node trains.

    Modules of the user's own are found, but not imported: the one that calls this may be among them.

    Raises:
        BadInput: For the first argument that is wrong.
    """
    if not isinstance(knowledge, str | Path | None):
        raise BadInput(f"{MOD}: knowledge", repr(knowledge), "'auto', the path of a folder, or None")
    arguments = validate_fields(ModArguments, given, MOD)
    check_policy(arguments.policy, limits, MOD, arguments.device)
    for device in arguments.device:
        check_device(device, f"{MOD}: device")
    _check_cost(arguments)
    if ":" in arguments.predictor:
        check_own_name(f"{MOD}: predictor", arguments.predictor)
    elif arguments.predictor not in PREDICTORS:
        raise UnknownName(f"{MOD}: predictor", arguments.predictor, (*PREDICTORS, "your own module:NAME"))
    return arguments


def check_policy(name: str, limits: Mapping[str, float], where: str, devices: tuple[str, ...] = ()) -> PolicySpec:
    """Check a policy and its numbers; ``where`` is the function that takes them, ``devices`` the boards if known.

    Raises:
        BadInput: There is no such policy, it needs a server of fedge's, or it does not take these numbers.
    """
    field = f"{where}: policy"
    if ":" in name and not name.startswith("preset:"):  # one of the user's own, which has numbers of its own
        options = {keyword: value for keyword, value in limits.items() if keyword not in POLICY_KEYWORDS}
    else:
        _check_keywords(limits, where, ("policy", "folder", "name", "now_s") if where == WRAPPER else MOD_KEYWORDS)
        options = {}
    numbers = {keyword: value for keyword, value in limits.items() if keyword not in options}
    policy = validate_fields(PolicySpec, {"name": name, **numbers, "options": options}, where)
    if name == JOINT_POLICY:
        right = "a policy that sets power modes: the app alone decides its steps and what it sends"
        raise BadInput(field, repr(name), right)
    base, _, preset = name.partition(":")
    if base == "preset":
        if not preset:
            raise BadInput(field, repr(name), "preset:NAME, a preset of the boards, e.g. preset:MAXN")
        for device in devices:
            _check_preset(preset, device, field)
    elif is_builtin_policy(name) or ":" not in name:
        load_policy(name, field)
    else:
        check_own_name(field, name)
    check_policy_options(policy, f"{where}: ", "")
    return policy


def check_device(device: str, where: str) -> None:
    """Check that a device is a board that can be emulated, or stands for this machine.

    Raises:
        BadInput: It is neither; suggests what may have been meant.
    """
    if device.startswith(EMULATED_PREFIX):
        catalogue.find(device.removeprefix(EMULATED_PREFIX), where)
        return
    if device in OWN_BOARDS:
        return
    boards = (*catalogue.load_catalogue(), *catalogue.aliases())
    right = f"{list_known(device, OWN_BOARDS, '')}, or {EMULATED_PREFIX}BOARD (`fedge devices list`)"
    if device in boards:
        right = f"{', '.join(OWN_BOARDS)}, or an emulated board; did you mean {EMULATED_PREFIX}{device}?"
    raise BadInput(where, repr(device), right)


def _check_keywords(limits: Mapping[str, float], where: str, arguments: tuple[str, ...]) -> None:
    for keyword in limits:
        if keyword not in POLICY_KEYWORDS:
            raise UnknownName(f"{where}: keyword", keyword, (*arguments, *POLICY_KEYWORDS))


def _check_preset(preset: str, device: str, where: str) -> None:
    if not device.startswith(EMULATED_PREFIX):
        return  # known on the machine only
    presets = catalogue.find(device.removeprefix(EMULATED_PREFIX), f"{MOD}: device").presets
    check_known(f"{where}: preset of {device}", preset, presets)


def _check_cost(arguments: ModArguments) -> None:
    cost, network, shape = arguments.cost, arguments.network, arguments.input_shape
    if cost is not None and network is not None:
        raise BadInput(f"{MOD}: cost", f"{cost!r} beside the network {network!r}", "one of them")
    if cost is not None and cost not in list_priced_workloads():
        raise UnknownName(f"{MOD}: cost", cost, list_priced_workloads())
    if network is None:
        if shape is not None:
            raise BadInput(f"{MOD}: input_shape", f"{shape} without a network", "a network beside it, or none of both")
        return
    try:
        check_network_name(network, shape)
    except BadInput as error:
        raise in_own_words(error) from error


def in_own_words(error: BadInput) -> BadInput:
    """Return the error of a network as one of the arguments of ``power_mode``, not of a command's options."""
    name = {"NETWORK": "network", "--input-shape": "input_shape"}.get(error.where, f"network: {error.where}")
    right = error.right.replace("as --input-shape 3x224x224", "for example input_shape=(3, 224, 224)")
    return BadInput(f"{MOD}: {name}", error.got, right)
