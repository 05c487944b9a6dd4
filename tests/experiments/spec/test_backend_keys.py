"""No key of an experiment is ignored without a word by a backend that has no use for it."""

import pytest

from experiments.spec.backend_keys import KEYS, change_backend, check_backend_keys, find_backends
from experiments.spec.experiment_loader import load_experiment
from experiments.spec.yaml_schema import describe_keys
from fedge.errors import BadInput
from fedge.experiment import Experiment

ENTRY = """
  truth: "table:{board}.csv"
  availability: {on_s: 10, off_s: 10}
  battery: {capacity_wh: 5}
  ambient_c: 40
  loader: {workers: 2}
  serving: {cost: resnet50-imagenet, rate_hz: 5, latency_s: 1, model: digits-cnn}
"""
FILE = f"""
backend: BACKEND
fleet:
- device: nano
- device: nano
  name: shelf{ENTRY}
superlink: {{address: "10.0.0.1:8000", root_certificates: ca.crt, connect_timeout_s: 60}}
reply_timeout_s: 60
jobs: 2
workload: {{model_mb: 3}}
backend_options: {{num_gpus: 0.5}}
"""
"""An experiment with every key that only some backends use."""
PLAIN = "backend: fleet\nfleet: [nano]\n"


def load(folder, text, backend, overrides=(), notes=None):
    (folder / "exp.yaml").write_text(text.replace("BACKEND", backend), encoding="utf-8")
    return load_experiment(folder / "exp.yaml", overrides, (notes if notes is not None else []).append)


@pytest.mark.parametrize("backend", ["local", "sim", "fleet"])
def test_a_key_that_the_backend_does_not_use_is_refused_with_its_place_and_the_reason(tmp_path, backend, monkeypatch):
    experiment = load(tmp_path, FILE, backend)
    for key in KEYS:
        monkeypatch.setattr("experiments.spec.backend_keys.KEYS", (key,))
        if backend in key.backends:
            check_backend_keys(experiment)
            continue
        with pytest.raises(BadInput) as refused:
            check_backend_keys(experiment)
        assert str(refused.value).startswith(key.path.replace("fleet.", "fleet[1].") + ": got ")
        assert str(refused.value).endswith(f"nothing: {key.reason}")


@pytest.mark.parametrize("backend", ["local", "sim", "fleet"])
def test_a_key_at_its_default_is_none(tmp_path, backend):
    check_backend_keys(load(tmp_path, PLAIN.replace("fleet\n", f"{backend}\n", 1), backend))


@pytest.mark.parametrize("backend", ["local", "sim", "fleet"])
def test_an_experiment_for_another_backend_has_none_of_the_keys_that_it_does_not_use(tmp_path, backend):
    experiment = load(tmp_path, FILE, "local" if backend == "fleet" else "fleet")

    changed = change_backend(experiment, backend)

    check_backend_keys(changed)
    assert changed.backend == backend
    assert (changed.superlink.address == experiment.superlink.address) == (backend == "fleet")
    assert changed.superlink.connect_timeout_s == (120 if backend == "local" else 60)
    assert (changed.fleet[1].battery == experiment.fleet[1].battery) == (backend != "fleet")


def test_the_name_of_another_backend_leaves_out_what_says_how_the_files_own_one_runs(tmp_path):
    notes = []
    text = PLAIN + "superlink: {address: '10.0.0.1:8000', connect_timeout_s: 60}\nreply_timeout_s: 60\n"

    experiment = load(tmp_path, text, "fleet", ["backend=local"], notes)

    check_backend_keys(experiment)
    left_out = "superlink.address, superlink.connect_timeout_s, reply_timeout_s"
    assert notes == [f"{left_out} of the file left out: the backend local does not use it"]
    simulated = load(tmp_path, text, "fleet", ["backend=sim"], notes)
    check_backend_keys(simulated)
    assert simulated.superlink.connect_timeout_s == 60
    assert notes[1:] == ["superlink.address of the file left out: the backend sim does not use it"]
    with pytest.raises(BadInput, match=r"jobs: got 2; nothing: only the local backend"):
        check_backend_keys(load(tmp_path, text, "fleet", ["backend=sim", "jobs=2"]))


def test_a_share_of_a_gpu_is_left_out_for_real_boards(tmp_path):
    notes = []
    text = "backend: sim\nfleet: [nano]\nbackend_options: {num_gpus: 0.5}\n"

    check_backend_keys(load(tmp_path, text, "sim", ["backend=fleet"], notes))

    assert notes == ["backend_options.num_gpus of the file left out: the backend fleet does not use it"]


def test_a_key_has_the_backends_of_the_key_that_it_is_in():
    assert find_backends("fleet[].battery.floor") == find_backends("fleet[].battery") == ("local", "sim")
    assert find_backends("superlink.address") == ("fleet",)
    assert find_backends("fleet") == find_backends("fleet[].name") == ()


def test_every_key_of_the_table_is_one_of_an_experiment():
    known = {one.key.replace("[]", "") for one in describe_keys(Experiment)}

    assert known.issuperset(key.path for key in KEYS)
