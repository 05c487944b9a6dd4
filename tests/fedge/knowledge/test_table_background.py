"""What a predictor is told of a table never comes from the table's own workload, by whatever name."""

import dataclasses

import numpy as np
import pytest

from fedge.costs.cost_priors import CARRIED_POWER_ERRORS, build_inference_priors
from fedge.costs.cost_profile import CostProfile, load_calibrated_training
from fedge.devices.catalogue import find, load_catalogue
from fedge.knowledge.table_background import build_background, find_board_spec, resolve_maxn
from fedge.types import Modes, ProfileTable

SHIPPED = load_calibrated_training()
WORKLOADS = sorted({profile.workload for profile in SHIPPED})


def named(table: ProfileTable, device: str, workload: str, sha256: str = "f" * 64, path: str = "") -> ProfileTable:
    place = path or f"{device}/train/{workload}.csv"
    return dataclasses.replace(table, device=device, workload=workload, sha256=sha256, path=place)


def sha_of(profile: CostProfile) -> str:
    return profile.evidence.sha256


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_prior_saw_the_targets_workload_on_any_board(table, workload):
    background = build_background(named(table, "agx-orin", workload))

    others = [profile for profile in SHIPPED if profile.workload != workload]
    assert len(background.knowledge.priors) == len(others) + 1
    assert {f"{p.device}/{p.workload} {sha_of(p)[:12]}" for p in others} < set(background.prior_tables)
    assert not [seen for seen in background.prior_tables if f"/{workload} " in seen]


@pytest.mark.parametrize("profile", SHIPPED, ids=lambda profile: f"{profile.device}-{profile.workload}")
def test_a_renamed_copy_of_a_calibrated_table_is_seen_through(table, profile):
    background = build_background(named(table, "somewhere", "something", sha_of(profile)))

    assert not [seen for seen in background.prior_tables if f"/{profile.workload} " in seen]
    assert len(background.prior_tables) == len([p for p in SHIPPED if p.workload != profile.workload])


def test_prior_tables_are_told_by_board_workload_and_checksum(table):
    background = build_background(named(table, "tx2", "new"))

    expected = {f"{profile.device}/{profile.workload} {sha_of(profile)[:12]}" for profile in SHIPPED}
    assert set(background.prior_tables) == expected


def test_the_priors_of_an_inference_table_are_first_those_of_inference(table):
    one = named(table, "agx-orin", "resnet50-imagenet", path="agx-orin/infer/resnet50-imagenet.csv")

    background = build_background(one, kind="infer")

    expected = build_inference_priors(
        find("agx-orin"), "resnet50-imagenet", batch_size=one.batch_size, specs=load_catalogue(), unseen=one.sha256
    )
    assert [prior.time.tolist() for prior in background.knowledge.priors] == [
        prior.coefficients.time.tolist() for prior in expected
    ]
    assert background.prior_tables[0].startswith("agx-orin-64gb/mobilenetv3l-gld23k")
    assert any(" infer b16 " in seen for seen in background.prior_tables)
    assert not [seen for seen in background.prior_tables if "/resnet50-imagenet " in seen]


@pytest.mark.parametrize(("name", "left_out"), [("agx-orin", "agx-orin-64gb"), ("tx2", "tx2"), ("jetson-tx2", "tx2")])
def test_a_boards_profiles_are_left_out_by_any_of_its_names(table, name, left_out):
    background = build_background(named(table, "agx-xavier", "new"), without=[name])

    assert background.prior_tables
    assert not [seen for seen in background.prior_tables if seen.startswith(f"{left_out}/")]
    assert not background.notes


def test_a_workloads_profiles_are_left_out_by_name(table):
    background = build_background(named(table, "agx-orin", "new"), without=["resnet18-imagenet"])

    assert len(background.prior_tables) == len([p for p in SHIPPED if p.workload != "resnet18-imagenet"])


def test_a_name_that_no_profile_has_is_remarked_on(table):
    (note,) = build_background(named(table, "tx2", "new"), without=["resnet18-imagenet", "resnet-81"]).notes

    assert "resnet-81" in note
    assert "resnet18" not in note


def test_there_may_be_no_prior_at_all(table):
    background = build_background(named(table, "agx-orin", "new"), without=WORKLOADS)

    assert background.knowledge.priors == ()
    assert background.prior_tables == ()


def test_references_of_the_targets_own_workload_are_dropped_with_a_word(table, make_table):
    own = named(table, "agx-orin", "net")
    copy = named(table, "agx-orin", "renamed", own.sha256, "copy.csv")
    elsewhere = named(make_table(3), "tx2", "net", "e" * 64, "elsewhere.csv")
    good = named(make_table(4), "agx-orin", "other", "a" * 64, "good.csv")

    background = build_background(own, [copy, elsewhere, good])

    assert background.knowledge.references == (good,)
    assert background.references == ("good.csv aaaaaaaaaaaa",)
    assert [note.split()[0] for note in background.notes] == ["copy.csv", "elsewhere.csv"]


def test_a_reference_that_was_calibrated_as_the_targets_workload_is_dropped(table):
    orin = next(p for p in SHIPPED if (p.device, p.workload) == ("agx-orin-64gb", "resnet18-imagenet"))
    nano = next(p for p in SHIPPED if (p.device, p.workload) == ("orin-nano", "resnet18-imagenet"))
    target, reference = named(table, "a", "b", sha_of(orin)), named(table, "c", "d", sha_of(nano))

    assert build_background(target, [reference]).knowledge.references == ()


def test_references_of_the_same_kind_of_board_come_first(table, make_table):
    far = named(make_table(3), "tx2", "one", "1" * 64)
    near = named(make_table(4), "agx-orin-64gb", "two", "2" * 64)

    background = build_background(named(table, "agx-orin", "new"), [far, near])

    assert background.knowledge.references == (near, far)
    assert [name.split()[0] for name in background.references] == ["two.csv", "one.csv"]


def test_a_board_goes_by_all_its_names():
    orin = find_board_spec("agx-orin")
    assert orin.name == "agx-orin-64gb"
    assert find_board_spec("toaster") is None


def test_the_catalogues_top_stands_where_it_covers_the_table(table):
    spec = load_catalogue()["agx-orin-64gb"]
    low = dataclasses.replace(table, modes=Modes(table.modes.knobs[:10]))

    assert resolve_maxn(low, spec) == spec.maxn
    assert resolve_maxn(low, None) == low.maxn
    assert resolve_maxn(low, load_catalogue()["tx2"]) == low.maxn, "the table's 3000 MHz memory is no TX2's"


def test_an_unknown_board_gets_the_profiles_as_they_are_nearest_top_clocks_first(table):
    specs = load_catalogue()
    tops = specs["tx2"].maxn
    knobs = [[tops.cores, tops.cpu_mhz, tops.gpu_mhz, tops.mem_mhz]]
    like_tx2 = dataclasses.replace(named(table, "toaster", "new"), modes=Modes(table.modes.knobs[:1] * 0 + knobs))

    background = build_background(like_tx2)

    tx2 = next(profile for profile in SHIPPED if profile.device == "tx2")
    assert background.knowledge.priors[0] is tx2.coefficients
    assert len(background.knowledge.priors) == len(SHIPPED)
    assert any("toaster" in note for note in background.notes)


def test_what_others_measured_on_the_same_board_is_the_most_credible(table, tmp_path):
    background = build_background(named(table, "agx-xavier", "resnet50-tinyimagenet224"))

    vit = next(p for p in SHIPPED if (p.device, p.workload) == ("agx-xavier", "vit-b16-cifar10"))
    assert background.knowledge.priors[0].power.tolist() == vit.coefficients.power.tolist()


def test_errors_of_priors_are_known_beside_an_estimate_from_the_layers(table):
    known, strange = (
        build_background(named(table, "agx-orin", name)).knowledge for name in ("mobilenetv3l-gld23k", "new")
    )

    assert len(known.errors) == len(known.priors)
    time, power = np.array(known.errors).T
    assert time.argmin() == power.argmin() == 0, "the layers on a board with tables"
    assert set(power[1:]) == set(CARRIED_POWER_ERRORS)
    assert strange.errors == ()
