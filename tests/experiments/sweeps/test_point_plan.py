"""A sweep's file becomes the same ordered points every time, and a mistake in it is told with file and field."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.sweeps.point_plan import build_variant, list_points, plan_sweep
from fedge.errors import BadInput


def test_a_grid_is_all_combinations_and_the_last_key_varies_fastest(write_sweep):
    plan = plan_sweep(write_sweep(grid={"policy": ["balanced", "maxn"], "rounds": [2, 3]}, seeds=3))

    assert [one.label for one in plan.variants] == [
        "balanced, rounds 2", "balanced, rounds 3", "maxn, rounds 2", "maxn, rounds 3",
    ]  # fmt: skip
    assert [(one.experiment.policy.name, one.experiment.rounds) for one in plan.variants] == [
        ("balanced", 2), ("balanced", 3), ("maxn", 2), ("maxn", 3),
    ]  # fmt: skip
    assert plan.count == 12


def test_every_variant_has_every_seed_and_the_first_seed_comes_first(write_sweep):
    plan = plan_sweep(write_sweep(grid={"policy": ["balanced", "maxn"]}, seeds=[7, 3]))

    points = list_points(plan.variants, plan.spec.seeds)

    assert [str(point) for point in points] == ["balanced, seed 7", "maxn, seed 7", "balanced, seed 3", "maxn, seed 3"]
    assert {point.experiment.backend for point in points} == {"local"}
    assert len({point.name for point in points}) == 4
    assert points[0].name == f"balanced-seed7-{points[0].identity}"


def test_a_list_names_its_variants_and_common_keys_are_set_in_all(write_sweep):
    entries = [{}, {"policy": {"name": "least-energy", "max_slowdown": 1.2}}, {"fleet.0.count": 1, "rounds": 4}]

    plan = plan_sweep(write_sweep(list=entries, set={"rounds": 2, "workload.learning_rate": 1e-05}))

    assert [one.label for one in plan.variants] == [
        "as in the file", "least-energy max_slowdown 1.2", "fleet.0.count 1, rounds 4",
    ]  # fmt: skip
    assert [one.experiment.rounds for one in plan.variants] == [2, 2, 4]
    assert plan.variants[2].experiment.fleet[0].count == 1
    assert {one.experiment.workload.learning_rate for one in plan.variants} == {1e-05}


values = st.dictionaries(
    st.sampled_from(["rounds", "workload.batch_size", "policy.time_weight", "share_samples", "selection.count"]),
    st.just(None),
    min_size=1,
).flatmap(
    lambda keys: st.fixed_dictionaries(
        {
            key: st.lists(
                {
                    "policy.time_weight": st.floats(0, 1),
                    "share_samples": st.booleans(),
                }.get(key, st.integers(1, 99)),
                min_size=1,
                max_size=2,
                unique=True,
            )
            for key in keys
        }
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grid=values, seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
def test_a_plan_is_a_function_of_its_file(write_sweep, grid, seeds):
    path = write_sweep(grid=grid, seeds=seeds)

    plan, again = plan_sweep(path), plan_sweep(path)
    points = list_points(plan.variants, plan.spec.seeds)

    assert points == list_points(again.variants, again.spec.seeds)
    assert len({point.identity for point in points}) == len({point.name for point in points}) == plan.count
    assert [point.seed for point in points] == [seed for seed in seeds for _ in plan.variants]
    for variant in plan.variants:
        rebuilt = dict(one.split("=", 1) for one in variant.overrides)
        setting = {key: yaml.safe_load(text) for key, text in rebuilt.items()}
        assert build_variant(path, plan.spec, setting).identity == variant.identity


def test_the_identity_depends_on_what_is_run_and_not_on_how_it_is_written(write_sweep, tmp_path):
    def identities(**keys: Any) -> list[str]:
        plan = plan_sweep(write_sweep(**keys))
        return [point.identity for point in list_points(plan.variants, plan.spec.seeds)]

    assert identities(grid={"policy": ["maxn"]}) == identities(list=[{"policy.name": "maxn", "rounds": 1}])
    assert identities(grid={"policy": ["maxn"]}) != identities(grid={"policy": ["balanced"]})
    assert identities(grid={"rounds": [1]}, seeds=[1]) != identities(grid={"rounds": [1]}, seeds=[2])


SPACE = {"policy.time_weight": {"low": 0, "high": 1}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "sweep.yaml: got no variants; one of the keys grid, list and sampler"),
        ({"grid": {"rounds": [1]}, "list": [{}]}, "sweep.yaml: got grid and list; one of the keys grid"),
        ({"grid": {"rounds": 3}}, "sweep.yaml: grid.rounds: got 3; a list"),
        ({"grid": {"rounds": []}}, r"sweep.yaml: grid.rounds: got \[\]; at least 1 of them"),
        ({"grid": {"rounds": [2]}, "seeds": True}, "sweep.yaml: seeds: got true; a number K from 1"),
        ({"grid": {"rounds": [2]}, "seeds": "five"}, "sweep.yaml: seeds: got 'five'; a number K from 1"),
        ({"grid": {"rounds": [2]}, "seeds": [1, 1]}, r"sweep.yaml: seeds: got \[1, 1\]; each seed once"),
        ({"grid": {"rounds": [2]}, "seed": 1}, "sweep.yaml: seed: .*; did you mean seeds. known here: exp"),
        ({"grid": {"seed": [1, 2]}}, "sweep.yaml: seed: got a key that no variant sets; the key `seeds`"),
        ({"grid": {"knowledge": ["auto"]}}, "sweep.yaml: knowledge: got a key that no variant sets; no knowledge"),
        ({"grid": {"backend": ["sim"]}}, "sweep.yaml: backend: got a key that no variant sets; no backend"),
        ({"grid": {"rounds": [1, 0]}}, "sweep.yaml: rounds 0: rounds: got 0; from 1 to 100000"),
        ({"grid": {"rouns": [1]}}, "sweep.yaml: rouns 1: rouns: got an unknown key; did you mean rounds. known"),
        ({"grid": {"fleet.9.count": [1]}}, "sweep.yaml: fleet.9.count 1: fleet.9: got '9'; a place from 0 to 0"),
        ({"list": [{"rounds": 1}, {}]}, "sweep.yaml: got the same experiment for rounds 1 and as in the file"),
        ({"grid": {"rounds": [2]}, "task": {"cpus": 0}}, "sweep.yaml: task.cpus: got 0; more than 0"),
        ({"grid": {"rounds": [2]}, "task": {"cpu": 1}}, "task.cpu: .*; did you mean cpus. known here: cpus"),
        ({"sampler": {"trials": 2, "space": SPACE}}, "sweep.yaml: sampler: got no aim; one of minimise and maximise"),
        (
            {"sampler": {"trials": 2, "minimise": "energy_j", "space": {"rounds": {"low": 3, "high": 1}}}},
            "sampler.space.rounds: got low 3 and high 1; a high",
        ),
        (
            {"sampler": {"trials": 2, "minimise": "energy_j", "space": {"rounds": {"low": 2, "high": 12}}}},
            "rounds: got 5.819; a whole number",
        ),
        (
            {"sampler": {"trials": 2, "minimise": "energy_j", "space": {"rounds": {"low": 3}}}},
            "sampler.space.rounds: got no range; low and high, or a list of choices",
        ),
        (
            {"sampler": {"trials": 2, "minimise": "energy_j", "space": {"rounds": {"hi": 3}}}},
            "sampler.space.rounds.hi: got an unknown key; did you mean high. known here: low, high, step, log, choices",
        ),
        (
            {"sampler": {"trials": 2, "minimise": "energy_j", "space": {"policy": {"choices": ["maxn", 3]}}}},
            r"sweep.yaml: policy 3: policy: got 3",
        ),
        (
            {"sampler": {"kind": "grid", "trials": 2, "minimise": "energy_j", "space": SPACE}},
            "sampler.kind: got 'grid'; 'optuna'",
        ),
    ],
)
def test_a_mistake_is_told_with_file_field_and_remedy(write_sweep, keys, message):
    with pytest.raises(BadInput, match=message):
        plan_sweep(write_sweep(**keys))


def test_an_experiment_that_is_not_there_is_told(write_sweep):
    with pytest.raises(BadInput, match=r"sweep.yaml: rounds 1: .*missing.yaml: got no such file; a YAML"):
        plan_sweep(write_sweep(experiment="missing.yaml", grid={"rounds": [1]}))


def test_what_the_variants_drop_of_the_file_is_told_once(write_sweep):
    path = write_sweep(grid={"policy.name": ["maxn", "balanced"], "rounds": [1, 2]})
    file = path.with_name("small.yaml")
    policy = {"name": "energy-budget", "budget_j": 1e9}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "policy": policy}))
    notes: list[str] = []
    plan_sweep(path, notes.append)
    assert ["budget_j" in note for note in notes] == [True, True]
