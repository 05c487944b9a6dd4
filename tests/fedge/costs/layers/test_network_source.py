"""What a user names as NETWORK is found, and what cannot be meant is one line that says what can."""

import json
from pathlib import Path

import pytest

from fedge.costs.layers.network_record import CONVOLUTION_COLUMNS, find_known_network, network_to_dict
from fedge.costs.layers.network_source import build_module, load_network_cost, parse_input_shape
from fedge.errors import BadInput

USERS = """
from torch import nn

def dense():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU())

def broken():
    raise RuntimeError("no\\nluck")

def number():
    return 3

class Leaves(nn.Module):
    def forward(self, x):
        raise SystemExit(0)
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module in the folder in which fedge was started."""
    name = f"nets_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(USERS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_classifier_of_torchvision_sees_its_own_images_by_default():
    assert load_network_cost("squeezenet1_1").input_shape == (3, 224, 224)
    assert load_network_cost("inception_v3").input_shape == (3, 299, 299)


def test_a_network_of_fedges_own_sees_its_own_data_set():
    network = load_network_cost("digits-cnn")
    assert (network.name, network.input_shape, network.parameters) == ("digits-cnn", (1, 8, 8), 6186)


def test_costing_leaves_modules_that_are_made_later_alone():
    load_network_cost("resnet18")
    module, _ = build_module("digits-cnn")
    assert not any(weight.is_meta for weight in module.parameters())


def test_the_users_own_module_is_found_in_the_folder_of_the_start(users):
    network = load_network_cost(f"{users}:dense", (8,))
    assert [layer.kind for layer in network.layers] == ["linear", "relu"]
    assert network.flop == 2 * 8 * 4 + 4


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        ("dense", None, "--input-shape: got nothing; the shape of one sample of"),
        ("dense", (5,), "a network whose forward fails for an input of 5 with RuntimeError"),
        ("broken", (8,), "got an error: RuntimeError: no luck"),
        ("Leaves", (8,), "fails for an input of 8 with SystemExit: 0 (nets_"),
        ("number", (8,), "got int; a function that returns a torch.nn.Module"),
        ("absent", (8,), "AttributeError"),
    ],
)
def test_the_users_mistakes_are_one_line(users, function, shape, message):
    with pytest.raises(BadInput) as caught:
        load_network_cost(f"{users}:{function}", shape)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("no_such_module_at_all:f", (8,), "ModuleNotFoundError"),
        ("resnet5", None, "did you mean .*resnet50"),
        ("digit-cnn", None, "did you mean .*digits-cnn"),
        ("swin", None, "did you mean .*swin_"),
        ("@@@", None, r"^NETWORK: got '@@@'; a classifier of torchvision"),
        ("digits-cnn", (1, 8, 16), "two equal sides for digits-cnn"),
        ("vit_b_16", (3, 100, 100), r"^--input-shape: got 3x100x100; images that vit_b_16 takes"),
        ("vit_b_16", (3, 8), "^--input-shape: got 3x8; channels and two sides for vit_b_16"),
        ("resnet18", (3, 8), "^--input-shape: got 3x8; channels and two sides for resnet18"),
        ("yolov8n-coco", (3, 224, 224), "its own images only"),
    ],
)
def test_what_cannot_be_meant_is_one_line_that_says_what_can(name, shape, told):
    with pytest.raises(BadInput, match=told) as caught:
        load_network_cost(name, shape)
    assert "\n" not in str(caught.value)


def test_a_workload_whose_module_is_not_here_is_costed_from_what_is_known():
    for workload in ("yolov8n-coco", "resnet50-imagenet"):
        assert load_network_cost(workload) is find_known_network(workload)
    with pytest.raises(BadInput, match="AGPL"):
        build_module("yolov8n-coco")


def test_a_file_of_costs_is_read_back(tmp_path):
    path = tmp_path / "net.json"
    network = find_known_network("resnet18-imagenet")
    assert network is not None
    path.write_text(json.dumps(network_to_dict(network)), encoding="utf-8")
    assert load_network_cost(str(path)) == network
    with pytest.raises(BadInput, match="says what its input is like"):
        load_network_cost(str(path), (3, 8, 8))
    with pytest.raises(BadInput, match="holds no torch module"):
        build_module(str(path))


@pytest.mark.parametrize("text", [None, "{", "[]", '"x"', "[" * 100_000], ids=["none", "open", "list", "text", "deep"])
def test_a_file_that_is_none_is_one_line(tmp_path, text):
    path = tmp_path / "net.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match="fedge layers"):
        load_network_cost(str(path))


def test_a_shape_is_numbers_apart_by_x():
    assert parse_input_shape("3x224X224") == (3, 224, 224)
    assert parse_input_shape("12") == (12,)
    assert parse_input_shape(None) is None


@pytest.mark.parametrize("text", ["", "3x", "3,224,224", "3x0x4", "-1x4", "a", "3x2.5"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(BadInput, match="the shape of one sample, without the batch: 3x224x224"):
        parse_input_shape(text)


def geometry(name: str) -> list[list[float]]:
    return [[getattr(each, column) for column in CONVOLUTION_COLUMNS] for each in load_network_cost(name).convolutions]


def measured(profiles_root: Path, network: str) -> list[list[float]]:
    data = json.loads((profiles_root / "perf4sight-tx2" / f"{network}.layers.json").read_text(encoding="utf-8"))
    assert tuple(data["columns"]) == CONVOLUTION_COLUMNS
    return data["levels"]["0"]


@pytest.mark.parametrize(
    ("network", "name"), [("resnet18", "resnet18"), ("resnet50", "resnet50"), ("squeezenet", "squeezenet1_0")]
)
def test_torchvisions_network_is_the_measured_one(profiles_root, network, name):
    assert geometry(name) == measured(profiles_root, network)
