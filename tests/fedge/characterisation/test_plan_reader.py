"""A plan is read as it was meant, and whatever is wrong with it is one line that names the field and what is known."""

import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedge.characterisation.plan_reader import read_resolved_plan, resolve_plan
from fedge.characterisation.sweep_plan import KNOBS, Images
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.types import PowerMode

LEAST = {"name": "p", "board": "emulated:agx-xavier", "workloads": ["lenet5-mnist"]}
XAVIER = catalogue.find("agx-xavier")
PATH = Path("/plans/p.yaml")


def read(raw):
    return resolve_plan({**LEAST, **raw}, PATH, lambda board: None if board == "here" else catalogue.find(board[:-2]))


def plan(**raw):
    return read(raw).plan


def test_the_least_plan_is_one_point_at_the_boards_top_mode():
    (point,) = plan().points
    assert (point.board, point.workload, point.mode) == ("agx-xavier-1", "lenet5-mnist", XAVIER.maxn)
    assert (point.batch_size, point.workers, point.storage, point.kind) == (16, 0, "default", "train")
    assert plan().base["mode"] == "maxn"
    assert tuple(plan().base) == KNOBS


def test_sweeps_are_crossed_within_and_united_without_repeats():
    found = plan(sweeps=[{"workers": [0, 1], "batch_size": [8, 16]}, {"workers": [1, 2]}])
    assert {(point.workers, point.batch_size) for point in found.points} == {(0, 8), (0, 16), (1, 8), (1, 16), (2, 16)}
    assert len(found.points) == 5
    assert found.swept == (("batch_size", "workers"), ("workers",))


def test_a_workload_sweep_is_one_word():
    both = {"workloads": ["lenet5-mnist", "resnet18-cifar10"]}
    for how in (
        {"sweeps": [{"workload": "all", "workers": [0, 1]}]},
        {"base": {"workload": "all"}, "sweeps": [{"workers": [0, 1]}]},
    ):
        found = plan(**both, **how)
        assert {(point.workload, point.workers) for point in found.points} == set(product(both["workloads"], (0, 1)))
        assert found.swept[0] == ("workload", "workers")


def test_boards_are_named_by_their_kind_and_number():
    found = plan(
        board=None, boards=["emulated:nano", {"device": "emulated:xavier-nx", "count": 2}, "emulated:nano", "here"]
    )
    assert found.boards == ("nano-1", "xavier-nx-1", "xavier-nx-2", "nano-2", "here")
    modes = {point.board: point.mode for point in found.points}
    assert modes["nano-2"] == catalogue.find("nano").maxn
    assert modes["here"] is None
    assert plan(board="emulated:agx-orin").boards == ("agx-orin-64gb-1",)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("maxn", XAVIER.maxn),
        ("MAXN", XAVIER.maxn),
        ("mode_15w", XAVIER.presets["MODE_15W"]),
        ("4/1200/670/1333", PowerMode(4, 1190.4, 675.75, 1331.2)),
        ("8/2100/900/1600", PowerMode(8, 2112.0, 905.25, 1600.0)),
        ("-/-/min/-", PowerMode(8, 2265.6, 114.75, 2133.0)),
        ("min/1036/-/min", PowerMode(1, 1036.8, 1377.0, 204.0)),
        ("slow", PowerMode(2, 1036.8, 420.75, 2133.0)),
    ],
)
def test_a_mode_is_the_nearest_that_the_board_has(text, mode):
    found = read({"modes": {"slow": "2/1036/420/2133"}, "base": {"mode": text}})
    assert [point.mode for point in found.plan.points] == [mode]
    assert found.modes == {"agx-xavier-1": {text: mode}}


@given(st.sampled_from(list(catalogue.load_catalogue().values())), st.data())
def test_every_mode_of_every_board_is_found_by_its_own_numbers(spec, data):
    mode = PowerMode(
        *(data.draw(st.sampled_from(table)) for table in (spec.cores, spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz))
    )
    text = f"{mode.cores}/{mode.cpu_mhz}/{mode.gpu_mhz}/{mode.mem_mhz}"
    found = resolve_plan({**LEAST, "base": {"mode": text}}, PATH, lambda board: spec)
    assert found.plan.points[0].mode == mode


def test_modes_where_none_can_be_set_are_as_they_stand():
    found = plan(board="here", sweeps=[{"mode": ["maxn", "4/1200.5/670/1333"]}])
    assert {point.mode for point in found.points} == {None, PowerMode(4, 1200.5, 670.0, 1333.0)}


def test_a_shipped_workload_may_be_made_short_and_renamed():
    given = {
        "lenet5-mnist": {"count": 100},
        "resnet18-cifar10": None,
        "few": {"like": "mobilenetv3l-gld23k", "images": 20, "learning_rate": 0.1},
        "large": {"like": "mobilenetv3l-gld23k", "images": {"width": 1600, "height": 1200}},
    }
    found = plan(workloads=given, base={"workload": "few"}).workloads
    assert found["lenet5-mnist"].images.count == 100
    assert found["lenet5-mnist"].images.source == "memory"
    assert found["resnet18-cifar10"].images.count == 50_000
    assert (found["few"].name, found["few"].model, found["few"].learning_rate) == ("few", "mobilenet_v3_large", 0.1)
    assert found["few"].images == Images(count=20, width=800, height=600)
    assert found["large"].images == Images(count=23_080, width=1600, height=1200)


def test_a_workload_of_the_users_own_has_its_images_beside_the_plan_or_on_each_storage():
    images = {"count": 9, "width": 80, "height": 60, "folder": "pics"}
    own = {"own": {"model": "net:make", "input": [3, 64, 48], "classes": 7, "images": images}}
    storages = {"disk": {"path": "mnt/x"}, "card": {"model": "sd"}}
    found = plan(workloads=own, storages=storages, base={"storage": "card"})
    assert found.workloads["own"].input == (3, 64, 48)
    assert found.workloads["own"].images.folder == "pics"
    assert found.storages["disk"].path == "/plans/mnt/x"
    assert (found.storages["card"].path, found.storages["card"].model) == (None, "sd")
    assert plan(workloads=own).workloads["own"].images.folder == "/plans/pics"


WRONG = [
    ({"name": None}, "name", "got nothing"),
    ({"nonsense": 1}, "nonsense", "an unknown key; known here: name, board, boards"),
    ({"board": None}, "board", "got nothing; one of them"),
    ({"boards": ["here"]}, "board", "both board and boards"),
    ({"board": "agx-xavier"}, "board", "'agx-xavier'; did you mean emulated:agx-xavier? known: here, emulated:"),
    ({"board": "emulated:agx"}, "board", "emulated:xavier-nx"),
    ({"board": None, "boards": []}, "boards", "got []"),
    ({"board": None, "boards": ["here", "here"]}, "boards[1]", "here once"),
    ({"board": None, "boards": [{"device": "emulated:nano", "count": 0}]}, "boards[0].count", "got 0"),
    ({"board": None, "boards": [{"device": "emulated:nano", "number": 3}]}, "boards[0].number", "known here: device"),
    ({"board": None, "boards": [7]}, "boards[0]", "got 7; a mapping with some of device, count"),
    ({"workloads": None}, "workloads", "lenet5-mnist, resnet18-cifar10, mobilenetv3l-gld23k"),
    ({"workloads": ["nosuch"]}, "workloads.nosuch", "known: lenet5-mnist"),
    ({"workloads": {"own": {"like": "nosuch"}}}, "workloads.own.like", "known: lenet5-mnist"),
    ({"workloads": {"own": 7}}, "workloads.own", "a mapping with some of like, count, model"),
    ({"workloads": {"all": None}}, "workloads.all", "not 'all'"),
    ({"workloads": {"lenet5-mnist": {"count": 0}}}, "workloads.lenet5-mnist.images.count", "got 0"),
    ({"workloads": {"lenet5-mnist": {"images": {"high": 3}}}}, "workloads.lenet5-mnist.images.high", "known here: c"),
    ({"workloads": {"lenet5-mnist": {"input": [1, 28]}}}, "workloads.lenet5-mnist.input", "got [1, 28]"),
    ({"storages": {"sd": {"kind": 1}}}, "storages.sd.kind", "known here: path, model"),
    ({"storages": {"all": {}}}, "storages", "another name"),
    ({"storages": {"sd": {}, "ssd": {}}}, "sweeps[0].storage", "got nothing; storage: all, some of sd, ssd"),
    ({"workloads": ["lenet5-mnist", "resnet18-cifar10"]}, "sweeps[0].workload", "workload: all, some of lenet5-mnist"),
    ({"course": {"epochs": True}}, "course.epochs", "got true"),
    ({"course": {"epochs": 2, "discard": 2}}, "course.discard", "fewer than course.epochs (2)"),
    ({"course": {"every": 2}}, "course.every", "every_s"),
    ({"base": {"worker": 1}}, "base", "'worker'; did you mean workers? known: mode, workload, kind"),
    ({"base": {"workers": -1}}, "base.workers", "from 0 to 64"),
    ({"base": {"workers": True}}, "base.workers", "got true"),
    ({"base": {"workers": [1, 2]}}, "base.workers", "got [1, 2]"),
    ({"base": {"kind": "test"}}, "base.kind", "known: train, infer"),
    ({"base": {"cache": "cold"}}, "base.cache", "known: dropped, warm"),
    ({"base": {"workload": "nosuch"}}, "base.workload", "known: lenet5-mnist"),
    ({"base": {"storage": "nosuch"}}, "base.storage", "known: default"),
    ({"base": {"pinned": "yes"}}, "base.pinned", "true or false"),
    ({"base": {"runtime": "docker:-v"}}, "base.runtime", "docker:IMAGE"),
    ({"base": {"mode": 15}}, "base.mode", "got 15; maxn"),
    ({"base": {"mode": "15W"}}, "mode '15W' on agx-xavier-1", "MODE_15W"),
    ({"base": {"mode": "9/1200/670/1333"}}, "mode '9/1200/670/1333' on agx-xavier-1", "9 cores; one of 1, 2"),
    ({"base": {"mode": "8/12/670/133"}}, "mode '8/12/670/133' on agx-xavier-1", "12 MHz; a clock that the board"),
    ({"base": {"mode": "8/x/670/1333"}}, "mode '8/x/670/1333' on agx-xavier-1", "'x'"),
    ({"base": {"mode": "4.5/1200/670/1333"}}, "mode '4.5/1200/670/1333' on agx-xavier-1", "4.5 cores; a whole number"),
    ({"sweeps": [{"worker": [1]}]}, "sweeps[0]", "'worker'; did you mean workers?"),
    ({"sweeps": [{}, {"workers": []}]}, "sweeps[1].workers", "an empty list"),
    ({"sweeps": [{"mode": "all"}]}, "sweeps[0].mode", "it has none (modes:)"),
    ({"sweeps": {"workers": [1]}}, "sweeps", "got {'workers': [1]}"),
    ({"sweeps": [{"batch_size": list(range(1, 1000)), "workers": list(range(64))}]}, "sweeps", "at most 20000"),
    ({"sweeps": [{"prefetch": [1, 4], "workers": [0]}]}, "sweeps[0].prefetch", "got [1, 4]; workers of 1 or more"),
    ({"modes": {"a": 4}}, "modes.a", "got 4"),
    ({"modes": {"all": "maxn"}}, "modes", "another name"),
    ({"name": "my board"}, "name", "got 'my board'; a name of letters, digits, "),
    ({"seed": "x"}, "seed", "got 'x'; a whole number"),
    ({"course": {"epochs": 0}}, "course.epochs", "got 0; from 1 to 10000"),
    ({"course": {"sample_hz": 1000}}, "course.sample_hz", "got 1000; more than 0 and at most 100"),
    ({"workloads": {"lenet5-mnist": {"conut": 3}}}, "workloads.lenet5-mnist.conut", "known here: like, count, model"),
    ({"workloads": {"mine": {"model": "resnet18"}}}, "workloads.mine.input", "for example input: [3, 224, 224]"),
    ({"workloads": {"lenet5-mnist": {"input": "1x28x28"}}}, "workloads.lenet5-mnist.input", "a list"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "field", "words"), WRONG, ids=[f"{field}-{i}" for i, (_, field, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_one_line_that_names_the_field(raw, field, words):
    with pytest.raises(BadInput) as refused:
        read(raw)
    assert refused.value.where == f"{PATH}: {field}"
    assert words in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00", "a: {b", "!!python/object:os.system x"])
def test_a_file_that_is_no_plan_is_one_line(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(BadInput) as refused:
        read_resolved_plan(tmp_path / "p.yaml")
    assert "\n" not in str(refused.value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["all", "maxn", "here", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "count", "like", "mode", 3]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.sampled_from(["name", "board", "boards", "workloads", "storages", "course", "seed", "modes", "base", "sweeps"]),
    JUNK,
)
def test_no_content_of_a_field_is_more_than_one_line(field, junk):
    told = ""
    try:
        read({field: junk})
    except BadInput as error:
        told = str(error)
    assert "\n" not in told


def configs(root):
    return {path.stem: path for path in (root / "experiments" / "configs" / "characterisation").glob("*.yaml")}


def test_every_shipped_plan_is_read_and_has_the_points_that_the_manual_says(project_root):
    page = project_root / "docs" / "how-to" / "characterise.md"
    text = page.read_text(encoding="utf-8").partition("## Included plans")[2]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {name: int(cells[2].split()[0]) for cells in rows for name in re.findall(r"`([^`]+)`", cells[1])}
    plans = {name: read_resolved_plan(path).plan for name, path in configs(project_root).items()}
    assert {name: len(plan.points) for name, plan in plans.items()} == told
    assert all(plan.name == name for name, plan in plans.items())


def test_a_study_of_one_board_is_a_real_boards_by_one_word(project_root):
    for name, path in configs(project_root).items():
        raw = yaml.safe_load(path.read_text())
        if "board" in raw and name != "here-quick":
            emulated = read_resolved_plan(path).plan
            real = resolve_plan(
                {**raw, "board": "here"}, path, lambda board, name=emulated.boards[0]: catalogue.find(name[:-2])
            )
            assert len(real.plan.points) == len(emulated.points)
            assert all(storage.path for storage in real.plan.storages.values())


def test_the_plans_of_the_manual_are_read(project_root):
    text = (project_root / "docs" / "how-to" / "characterise.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)

    found = resolve_plan(yaml.safe_load(first), PATH, lambda board: XAVIER).plan
    own = plan(**yaml.safe_load(second), base={"workload": "mine"})

    assert len(found.points) == len(set(found.points)) == 16
    assert own.workloads["large-photos"].images.width == 1600
    assert own.workloads["mine"].model == "mynet:make"
