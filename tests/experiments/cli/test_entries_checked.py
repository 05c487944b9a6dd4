"""A fleet entry's own cost and its table's clocks are checked: a board's own table passes, another board's does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.spec import experiment_checks
from fedge.costs.layered_work import build_workload
from fedge.devices.catalogue import aliases, load_catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.experiment import Experiment, FleetEntry, WorkloadSpec
from fedge.modes import build_grid
from fedge.types import DeviceSpec, Modes

CATALOGUE = load_catalogue()


def of_gpu(spec: DeviceSpec, gpu_mhz: tuple[float, ...]) -> Modes:
    return build_grid(
        spec, cores=spec.cores[-1:], cpu_mhz=spec.cpu_mhz[-1:], gpu_mhz=gpu_mhz, mem_mhz=spec.mem_mhz[-1:]
    )


def test_a_table_may_have_one_clock_in_ten_a_little_off() -> None:
    spec = CATALOGUE["tx2"]
    one, two = (
        tuple(0.97 * mhz if i in places else mhz for i, mhz in enumerate(spec.gpu_mhz)) for places in ((7,), (3, 7))
    )

    experiment_checks._check_knobs("t.csv", of_gpu(spec, one), spec)
    with pytest.raises(BadInput, match=r"t\.csv: gpu_hz: got .* MHz; what tx2 has"):
        experiment_checks._check_knobs("t.csv", of_gpu(spec, two), spec)


def test_a_clock_far_off_is_refused_alone_as_well() -> None:
    spec = CATALOGUE["tx2"]
    with pytest.raises(BadInput, match="gpu_hz: got 2600 MHz"):
        experiment_checks._check_knobs("t.csv", of_gpu(spec, (*spec.gpu_mhz[:-1], 2600.0)), spec)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_whole_grid_of_a_board_is_refused_for_every_board_but_itself(name: str) -> None:
    own = CATALOGUE[name]
    experiment_checks._check_knobs("t.csv", build_grid(own), own)
    for other in CATALOGUE.values():
        knobs = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")
        if all(set(getattr(own, knob)) <= set(getattr(other, knob)) for knob in knobs):
            continue  # a smaller board of the same kind
        with pytest.raises(BadInput, match="is it this board's table"):
            experiment_checks._check_knobs("t.csv", build_grid(own), other)


def test_recorded_tables_are_their_own_boards_and_no_other_ones(profiles_root: Path) -> None:
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


def test_an_unknown_cost_of_an_entry_is_named_by_its_place() -> None:
    with pytest.raises(UnknownName, match=r"fleet\[0\]\.cost: got 'digits'; known: resnet18-imagenet, "):
        entry_checked(FleetEntry(device="nano", cost="digits"))


def test_an_entry_of_its_own_cost_is_priced_at_that_costs_batch_size() -> None:
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10")

    entry_checked(entry, batch_size=64)
    assert build_workload(entry, WorkloadSpec(batch_size=64)).batch_size == 32
    entry_checked(entry.model_copy(update={"cost": None}), batch_size=64)


def test_a_table_named_after_another_workload_than_the_entrys_cost_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "yolov8n-coco.csv"
    path.write_text("cores,cpu_khz,gpu_hz,mem_hz,batch_size,time_ms,power_w\n4,1479000,921600000,1600000000,16,100,9\n")
    entry = FleetEntry(device="nano", cost="vit-b16-cifar10", truth=f"table:{path}")

    with pytest.raises(BadInput, match=r"a table of vit-b16-cifar10, or --set fleet\.0\.cost=yolov8n-coco"):
        entry_checked(entry)
    entry_checked(entry.model_copy(update={"cost": "yolov8n-coco"}))
