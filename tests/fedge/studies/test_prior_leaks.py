"""Nothing that was fitted to what is judged, or to its network, moves a prior; all that moves one is named."""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.costs import cost_priors as priors_module
from fedge.costs.cost_priors import build_priors, select_prior_sources
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import SIZE_EXPONENT, load_workload_sizes, scale_to_board, scale_to_workload, size_ratio
from fedge.costs.gpu_rates import RateObservation
from fedge.costs.layer_estimate import estimate_network_cost, load_timed_steps
from fedge.costs.layered_work import find_known_layers, find_profile_network
from fedge.costs.layers.network_record import list_known_workloads
from fedge.devices import board_kinds
from fedge.devices.catalogue import load_catalogue
from fedge.knowledge import table_background
from fedge.knowledge.table_background import build_background, name_prior_tables
from fedge.modes import stack_modes
from fedge.physics.time_power_model import Coefficients, compute_step_s
from fedge.types import ProfileTable, Workload

SPECS = load_catalogue()
SHIPPED = (*load_calibrated_training(), *load_calibrated_inference())
ONE_EACH = (
    *load_calibrated_training(),
    *(profile for profile in load_calibrated_inference() if profile.batch_size == 16),
)
NAMES = sorted(list_known_workloads())
BOARDS = ["agx-orin-64gb", "agx-xavier", "tx2", "nano"]


def poisoned(profile: CostProfile) -> CostProfile:
    worse = Coefficients(profile.coefficients.time + 1.0, profile.coefficients.power + 1.0)
    return dataclasses.replace(profile, coefficients=worse)


def timed_poisoned(one: RateObservation) -> RateObservation:
    return dataclasses.replace(one, seconds=one.seconds * math.exp(9.0))


def network(workload: str) -> str | None:
    layers = find_known_layers(workload)
    return layers.network if layers else None


def same(a: Sequence[Coefficients], b: Sequence[Coefficients]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(x.time, y.time) and np.array_equal(x.power, y.power) for x, y in zip(a, b, strict=True)
    )


def named(table: ProfileTable, device: str, workload: str, batch_size: int, sha256: str = "f" * 64) -> ProfileTable:
    return dataclasses.replace(table, device=device, workload=workload, batch_size=batch_size, sha256=sha256)


def sha_of(profile: CostProfile) -> str:
    return profile.evidence.sha256


class World:
    """What ships, with profiles and timed steps poisoned as told, wherever priors come from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def becomes(self, bad: Callable[[CostProfile], bool], bad_steps: Callable[[RateObservation], bool]) -> None:
        of = {
            kind: tuple(poisoned(p) if bad(p) else p for p in SHIPPED if p.kind == kind) for kind in ("train", "infer")
        }
        steps = tuple(timed_poisoned(one) if bad_steps(one) else one for one in load_timed_steps())
        for module in (priors_module, table_background):
            self._patch.setattr(module, "load_calibrated_training", lambda: of["train"])
            self._patch.setattr(module, "load_calibrated_inference", lambda: of["infer"])
        self._patch.setattr(priors_module, "load_timed_steps", lambda: steps)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def of_workload_or_network(workload: str) -> tuple[Callable[[CostProfile], bool], Callable[[RateObservation], bool]]:
    """All that is of the workload; of its network also inference and timed steps, but no other workload's training.

    That is a workload of its own, which a board may have trained before: it is carried, as any other.
    """

    def bad(profile: CostProfile) -> bool:
        return profile.workload == workload or (
            profile.kind == "infer" and find_profile_network(profile) == network(workload)
        )

    return bad, lambda one: one.network == network(workload)


@pytest.mark.parametrize("workload", NAMES)
@pytest.mark.parametrize(("device", "batch_size"), [*zip(BOARDS, (8, 37, 16, 16), strict=True), ("agx-orin-64gb", 16)])
def test_poison_in_the_same_workload_or_network_moves_no_prior(world, table, device, workload, batch_size):
    target, work = named(table, device, workload, batch_size), Workload(workload, batch_size)

    def believed() -> list[Coefficients]:
        told = build_background(target).knowledge.priors
        return [*told, *(prior.coefficients for prior in board_kinds.list_priors(SPECS[device], work))]

    honest = believed()
    world.becomes(*of_workload_or_network(workload))

    assert same(honest, believed())


@pytest.mark.parametrize("workload", NAMES)
def test_the_estimate_by_layers_is_moved_by_no_training_of_its_network_either(world, workload):
    honest = build_priors(SPECS["agx-xavier"], workload, SPECS, batch_size=16)[0]
    world.becomes(lambda p: find_profile_network(p) == network(workload), lambda one: one.network == network(workload))
    blind = build_priors(SPECS["agx-xavier"], workload, SPECS, batch_size=16)[0]

    assert honest.source.startswith("layers of")
    assert same([honest.coefficients], [blind.coefficients])


@pytest.mark.parametrize("alias", [*NAMES, "something"])
@pytest.mark.parametrize("profile", ONE_EACH, ids=lambda p: f"{p.device}-{p.workload}-{p.kind}")
def test_a_replayed_table_under_another_name_takes_its_workload_and_network_along(world, table, profile, alias):
    target = named(table, profile.device, alias, profile.batch_size, sha_of(profile))

    def believed() -> list[Coefficients]:
        kind = board_kinds._kind_from_table(SPECS[profile.device], target, alias)
        return [*build_background(target).knowledge.priors, *(prior.coefficients for prior in kind.priors)]

    honest = believed()
    world.becomes(*of_workload_or_network(profile.workload))
    assert same(honest, believed())
    world.becomes(*of_workload_or_network(alias))
    assert same(honest, believed())


@pytest.mark.parametrize("name", [*NAMES, *BOARDS[:3]])
@pytest.mark.parametrize("workload", NAMES)
def test_poison_in_what_is_left_out_by_name_moves_no_prior(world, table, workload, name):
    target = named(table, "tx2", workload, 16)
    honest = build_background(target, without=[name])
    world.becomes(
        lambda profile: name in (profile.workload, profile.device),
        lambda one: one.device == name or one.network == network(name),
    )
    blind = build_background(target, without=[name])

    assert same(honest.knowledge.priors, blind.knowledge.priors)
    assert not [seen for seen in blind.prior_tables if seen.startswith(f"{name}/") or f"/{name} " in seen]


@pytest.mark.parametrize("device", ["tx2", "agx-orin-64gb", "toaster"])
@pytest.mark.parametrize(
    ("workload", "without"),
    [
        *((name, ()) for name in [*NAMES, "unheard-of"]),
        ("resnet50-imagenet", tuple(n for n in NAMES if not n.startswith("resnet50"))),
        ("resnet18-imagenet", ("tx2", "mobilenetv3l-gld23k")),
    ],
)
def test_a_table_moves_a_prior_exactly_if_it_is_named(world, table, device, workload, without):
    target = named(table, device, workload, 16)
    honest = build_background(target, without=without)

    def moves(bad: Callable[[CostProfile], bool], bad_steps: Callable[[RateObservation], bool]) -> bool:
        world.becomes(bad, bad_steps)
        return not same(honest.knowledge.priors, build_background(target, without=without).knowledge.priors)

    moving = [p for p in SHIPPED if moves(partial(operator.is_, p), lambda _step: False)]
    steps = [one for one in load_timed_steps() if moves(lambda _profile: False, partial(operator.eq, one))]

    assert set(honest.prior_tables) == set(name_prior_tables(moving, steps))
    assert len(honest.prior_tables) == len(set(honest.prior_tables))


@given(st.sampled_from(sorted(SPECS)), st.sampled_from([*NAMES, "unheard-of"]), st.none() | st.integers(1, 300))
def test_priors_are_what_brute_force_puts_together(device, workload, batch_size):
    spec, sizes = SPECS[device], load_workload_sizes()
    usual = sizes[workload].batch_size if workload in sizes else None
    size = batch_size or usual
    others = [p for p in SHIPPED if p.workload != workload and find_profile_network(p) != network(workload)]
    steps = [one for one in load_timed_steps() if one.network != network(workload)]

    def by_layers(at: int) -> CostProfile:
        return estimate_network_cost(
            spec, Workload(workload, at, layers=find_known_layers(workload)), SPECS, others, steps
        )

    def top_s(profile: CostProfile) -> float:
        return float(compute_step_s(profile.coefficients, spec.maxn, stack_modes([spec.maxn]))[0])

    found = list(build_priors(spec, workload, SPECS, batch_size=batch_size))
    if network(workload) is not None and size is not None:
        assert same([found.pop(0).coefficients], [by_layers(size).coefficients])
    longer = top_s(by_layers(size)) / top_s(by_layers(usual)) if size and usual and size != usual else 1.0
    wanted = []
    for p in (p for p in SHIPPED if p.kind == "train" and p.workload != workload):
        here = p if p.device == device else scale_to_board(p, SPECS[p.device], spec)
        known = {workload, p.workload} <= sizes.keys()
        ratio = size_ratio(sizes[workload], sizes[p.workload]) ** SIZE_EXPONENT if known else 1.0
        wanted.append(scale_to_workload(here, workload, 1, ratio * longer).coefficients)
    assert len(found) == len(wanted)
    for prior in found:
        assert prior.batch_size == size or size is None
        times = [float(np.abs(one.time - prior.coefficients.time).max()) for one in wanted]
        assert min(times) < 1e-9
        assert np.array_equal(wanted.pop(int(np.argmin(times))).power, prior.coefficients.power)


def test_what_is_learnt_from_is_found_without_fitting_anything(monkeypatch):
    monkeypatch.setattr(priors_module, "estimate_network_cost", lambda *_: pytest.fail("fitted"))

    found = select_prior_sources("resnet18-imagenet", SPECS)

    assert found.rescaled_profiles
    assert found.rate_profiles
    assert {one.network for one in found.timed_steps} == {one.network for one in load_timed_steps()} - {"resnet18"}


@pytest.mark.parametrize("batch_size", [4, 16, 64])
def test_boards_in_rounds_believe_what_an_evaluation_does_but_for_the_layers(table, batch_size):
    spec, name = SPECS["agx-orin-64gb"], "resnet18-imagenet"
    target = named(table, spec.name, name, batch_size)
    every = [prior.coefficients for prior in build_priors(spec, name, SPECS, batch_size=batch_size)]

    replayed = [prior.coefficients for prior in board_kinds._kind_from_table(spec, target, name).priors]
    played = [prior.coefficients for prior in board_kinds.list_priors(spec, Workload(name, batch_size))]

    assert same(every[1:], replayed)
    assert same(every[1:], played)
    assert same(every, build_background(target).knowledge.priors)
