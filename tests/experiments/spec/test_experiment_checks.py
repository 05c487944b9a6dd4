"""What cannot work is refused before anything is written: boards, tables, selections and availability."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.launching import SMALL, refusal

from experiments.spec import experiment_checks
from experiments.spec.experiment_checks import boards_over_power_limit, build_labels, check_experiment
from experiments.spec.experiment_loader import load_experiment
from fedge.costs.layered_work import build_workload
from fedge.decisions.selection import SELECTORS, load_selector
from fedge.decisions.selection.selector_options import SELECTOR_OPTIONS
from fedge.devices import catalogue
from fedge.devices.catalogue import aliases, load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec
from fedge.knowledge.evidence_files import find_kinds
from fedge.modes import build_grid
from fedge.types import ClientStatus, DeviceSpec, Modes, SelectionContext


def said_of_presence(folder: Path, *overrides: str) -> str:
    return refusal(experiment_checks._check_availability, folder, *overrides)


def traced(folder: Path, *lines: str) -> str:
    """What is said to a trace of the first entry's boards."""
    path = folder / "trace.csv"
    path.write_text("\n".join(("board,on_s,off_s", *lines)), encoding="utf-8")
    return said_of_presence(
        folder, "fleet.0={device: nano, count: 2, name: a}", f"fleet.0.availability={{trace: {path}}}"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("availability={on_s: 60}", "fleet[0].availability.off_s: got nothing; both on_s and off_s, or a trace"),
        ("availability={off_s: 60}", "fleet[0].availability.on_s: got nothing; both on_s and off_s"),
        ("availability={}", "fleet[0].availability.on_s: got nothing; both on_s and off_s"),
        ("availability={on_s: 60, off_s: 6, trace: x.csv}", "fleet[0].availability.trace: got "),
        ("availability={trace: /nowhere/x.csv}", "fleet[0].availability.trace: /nowhere/x.csv: got no such file"),
        ("battery={capacity_wh: 9, charge: 0.1, floor: 0.2}", "fleet[0].battery.charge: got 0.1; at least its floor"),
    ],
)
def test_a_board_that_could_never_take_part_is_refused(tmp_path, override, message):
    assert said_of_presence(tmp_path, f"fleet.0.{override}").startswith(message)


def test_a_board_without_a_line_and_a_bad_line_are_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    assert traced(tmp_path / "one", "a-1,0,5").endswith(
        "trace.csv: got no line of a-2; a line for every board of the entry"
    )
    assert "trace.csv: line 2, on_s: got 'soon'; a number of seconds" in traced(tmp_path / "two", "a-1,soon,5")


def said_of_signal(folder: Path, text: str, *overrides: str) -> str:
    (folder / "carbon.csv").write_text(text, encoding="utf-8")
    return refusal(experiment_checks._check_signal, folder, *overrides)


def test_a_signal_or_a_selector_that_waits_for_one_that_cannot_work_is_refused(tmp_path):
    excess, given = "selection={name: fedzero-like, options: {threshold: 0.1}}", f"signal={tmp_path}/carbon.csv"
    lines = "at_s,all\n0,100\n60,300\n"

    assert said_of_signal(tmp_path, lines, excess).startswith(
        "signal: got nothing; a CSV file of at_s and a column per"
    )
    assert said_of_signal(tmp_path, lines, excess, given).startswith(
        "selection.options.threshold: got 0.1; at least 0.5, the boards' least value relative to the signal's mean"
    )
    assert said_of_signal(tmp_path, lines, "selection=fedzero-like", given, "backend=fleet").startswith(
        "selection.name: got 'fedzero-like'; another selector, or emulated boards"
    )
    assert said_of_signal(tmp_path, lines, f"signal={tmp_path}/none.csv").startswith("signal.trace: ")


MANUAL = (Path(__file__).resolve().parents[3] / "docs" / "explanation" / "selection.md").read_text(encoding="utf-8")


def said_of_selection(folder: Path, *overrides: str) -> str:
    return refusal(experiment_checks._check_selection, folder, *overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("selection.name=os:sep", "selection.name: got 'os:sep'; a function or a class"),
        ("selection={name: random, options: {d: 3}}", "selection.options.d: got 3; random takes no options"),
        (
            "selection={name: energy-aware, options: {charge: 0.3}}",
            "selection.options.charge: got 0.3; did you mean charge_floor or charge_weight? energy-aware takes ",
        ),
        (
            "selection={name: energy-aware, options: {charge_floor: 30}}",
            "selection.options.charge_floor: got 30; a number from 0 to 1",
        ),
        ("selection={name: tifl, options: {tiers: 1.5}}", "selection.options.tiers: got 1.5; a whole number of at lea"),
        (
            "selection.name=pyramidfl-like",
            "policy.name: got 'balanced'; a policy that does not plan the round, such as ",
        ),
        ("selection={name: random, count: 3}", "selection.count: got 3; from 1 to 2, the boards of the fleet"),
        ("selection.over_commit=1.5", "selection.over_commit: got 1.5; 1, or a selection.count: without one every"),
        ("selection.count=1", "selection.count: got 1; none, because `all` takes every board, or a selection.name "),
    ],
)
def test_a_selection_that_cannot_work_is_refused(tmp_path, override, message):
    assert said_of_selection(tmp_path, override).startswith(message)


def test_the_whole_check_looks_at_the_selection(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(SMALL, encoding="utf-8")

    with pytest.raises(BadInput, match=r"selection.count: got 9; from 1 to 2"):
        experiment_checks.check_experiment(load_experiment(path, ["selection={name: random, count: 9}"]))


def test_every_selector_and_option_stands_in_the_manual_with_its_default():
    rows = dict(re.findall(r"^\| `([a-z-]+)`.*?\|.*?\|(.*)\|$", MANUAL, re.MULTILINE))

    assert list(rows) == list(SELECTORS)
    for selector, options in SELECTOR_OPTIONS.items():
        for name, option in options.items():
            default = "" if option.default is None else f"{option.default:g}"
            assert f"`{name}` ({default}" in rows[selector]


def test_every_example_of_the_manual_is_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "my_selectors.py").write_text(
        re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL)[0], encoding="utf-8"
    )
    path = tmp_path / "exp.yaml"
    examples = re.findall(r"```yaml\n(.*?)```", MANUAL, re.DOTALL)
    for example in examples:
        path.write_text(f"fleet: [{{device: nano, count: 40}}]\n{example}", encoding="utf-8")
        experiment_checks._check_selection(load_experiment(path))

    assert len(examples) >= len(SELECTORS)
    own = load_selector("my_selectors:emptiest_last")
    told = [ClientStatus("a", charge=0.5), ClientStatus("b"), ClientStatus("c", charge=0.9)]
    assert own(told, SelectionContext(1, 2), np.random.default_rng(1)).boards == ("b", "c")


CATALOGUE = load_catalogue()


def of_gpu(spec: DeviceSpec, gpu_mhz: tuple[float, ...]) -> Modes:
    return build_grid(
        spec, cores=spec.cores[-1:], cpu_mhz=spec.cpu_mhz[-1:], gpu_mhz=gpu_mhz, mem_mhz=spec.mem_mhz[-1:]
    )


def test_a_table_may_have_one_clock_in_ten_a_little_off():
    spec = CATALOGUE["tx2"]
    one, two = (
        tuple(0.97 * mhz if i in places else mhz for i, mhz in enumerate(spec.gpu_mhz)) for places in ((7,), (3, 7))
    )

    experiment_checks._check_knobs("t.csv", of_gpu(spec, one), spec)
    with pytest.raises(BadInput, match=r"t\.csv: gpu_hz: got .* MHz; what tx2 has"):
        experiment_checks._check_knobs("t.csv", of_gpu(spec, two), spec)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_whole_grid_of_a_board_is_refused_for_every_board_but_itself(name):
    own = CATALOGUE[name]
    experiment_checks._check_knobs("t.csv", build_grid(own), own)
    for other in CATALOGUE.values():
        knobs = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")
        if all(set(getattr(own, knob)) <= set(getattr(other, knob)) for knob in knobs):
            continue  # a smaller board of the same kind
        with pytest.raises(BadInput, match="is it this board's table"):
            experiment_checks._check_knobs("t.csv", build_grid(own), other)


def test_recorded_tables_are_their_own_boards_and_no_other_ones(profiles_root):
    for path in sorted(profiles_root.glob("*/train/*.csv")):
        table = read_mode_table(path)
        passed = set()
        for spec in CATALOGUE.values():
            try:
                experiment_checks._check_knobs(str(path), table.modes, spec)
            except BadInput:
                continue
            passed.add(spec.name)
        assert passed == {aliases().get(table.device, table.device)}, path


def entry_checked(entry: FleetEntry, **workload: object) -> None:
    experiment_checks._check_fleet(Experiment(fleet=(entry,), workload=WorkloadSpec(**workload)))


def test_an_unknown_cost_of_an_entry_is_named_by_its_place():
    with pytest.raises(UnknownName, match=r"fleet\[0\]\.cost: got 'digits'; known: resnet18-imagenet, "):
        entry_checked(FleetEntry(device="nano", cost="digits"))


def test_an_entry_of_its_own_cost_is_priced_at_that_costs_batch_size():
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10")

    entry_checked(entry, batch_size=64)
    assert build_workload(entry, WorkloadSpec(batch_size=64)).batch_size == 32
    entry_checked(entry.model_copy(update={"cost": None}), batch_size=64)


def test_a_table_named_after_another_workload_than_the_entrys_cost_is_refused(tmp_path):
    path = tmp_path / "yolov8n-coco.csv"
    path.write_text("cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w\n4,1479000,921600000,1600000000,16,100,9\n")
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", truth=f"table:{path}")

    with pytest.raises(BadInput, match=r"a table of vit-b16-cifar10, or --set fleet\.0\.cost=yolov8n-coco"):
        entry_checked(entry)
    entry_checked(entry.model_copy(update={"cost": "yolov8n-coco"}))


def build(*, backend: str = "fleet", fleet: Any = ({"device": "gpu-workstation"},), **more: Any) -> Experiment:
    values = {"backend": backend, "rounds": 1, "fleet": fleet, "workload": {"task": "digits-cnn"}, **more}
    return Experiment.model_validate(values)


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_it_cannot_be_emulated(backend):
    with pytest.raises(BadInput, match=r"fleet\[0\].device: got 'gpu-workstation'.*backend: fleet.*cannot be emulated"):
        check_experiment(build(backend=backend))


@pytest.mark.parametrize("policy", [{"name": "preset:250W"}, {"name": "balanced", "deadline_s": 0.001}])
def test_a_real_one_is_accepted_with_limits_that_only_it_can_judge(policy):
    check_experiment(build(policy=policy))


def test_beside_boards_of_the_catalogue_these_are_checked_as_ever():
    fleet = [{"device": "gpu-workstation"}, {"device": "orin-nano"}]
    check_experiment(build(fleet=fleet))
    with pytest.raises(BadInput, match="preset of orin-nano"):
        check_experiment(build(fleet=fleet, policy={"name": "preset:250W"}))


def test_what_needs_the_catalogue_is_refused():
    serving = {"cost": "resnet50-imagenet", "rate_hz": 1, "latency_s": 1}
    with pytest.raises(BadInput, match=r"fleet\[0\].serving"):
        check_experiment(build(fleet=[{"device": "gpu-workstation", "serving": serving}]))
    with pytest.raises(BadInput, match=r"evaluation\.by"):
        check_experiment(build(evaluation={"by": "both"}))


def test_it_is_a_kind_of_its_own_and_nothing_is_said_of_its_power_beforehand():
    fleet = [{"device": "gpu-workstation"}, {"device": "orin-nano"}]
    experiment = build(fleet=fleet, policy={"name": "fastest-within-power", "power_w": 1})
    kinds = find_kinds(experiment)
    assert kinds["gpu-workstation-1"] != kinds["orin-nano-1"]
    assert [board.name for board in boards_over_power_limit(experiment)] == ["orin-nano-1"]
    assert build_labels(experiment)["gpu-workstation"]["truth"]["label"] == "measured"
    assert not catalogue.is_catalogued("gpu-workstation")
