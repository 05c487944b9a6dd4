"""What can run on which machine, and the reason in words where something cannot; other machines are made up."""

from dataclasses import replace

import pytest

from fedge.analysis.placement.accelerators import Instance, Placement
from fedge.analysis.placement.inference_jobs import (
    InstalledLibraries,
    detect_libraries,
    list_runtimes,
    select_providers,
)
from fedge.analysis.placement.placement_runs import check_runnable, find_usable_libraries, list_placements
from fedge.errors import BadInput

SERVER = InstalledLibraries(
    torch=True, cuda=None, tf32=True, ort_providers=("CPUExecutionProvider",), tensorrt=False, dla_cores=0
)
ORIN = InstalledLibraries(
    torch=True, cuda=None, tf32=True, ort_providers=("CPUExecutionProvider",), tensorrt=True, dla_cores=2
)  # fmt: skip


def libraries(found: InstalledLibraries) -> dict[tuple[str, str], str]:
    return find_usable_libraries(list_runtimes(found))


def test_a_server_with_a_gpu_runs_everything_but_dla():
    assert {name for name, _ in libraries(SERVER)} == {"torch-cpu", "ort-cpu", "cuda-cores", "tensor-cores"}
    assert {way.reason for way in list_runtimes(SERVER) if way.accelerator == "dla-0"} == {"this machine has no DLA"}


def test_an_orin_runs_everything_and_a_dla_under_tensorrt():
    assert len(libraries(ORIN)) == len(list_runtimes(ORIN))
    assert libraries(ORIN)["dla-1", "int8"] == "tensorrt"


def test_a_dla_runs_under_onnx_runtime_where_that_has_tensorrt():
    found = replace(ORIN, ort_providers=("TensorrtExecutionProvider", "CPUExecutionProvider"), tensorrt=False)
    assert libraries(found)["dla-0", "fp16"] == "onnxruntime"


@pytest.mark.parametrize(
    ("found", "accelerator", "precision", "why"),
    [
        (replace(ORIN, tensorrt=False), "dla-0", "fp16", "neither TensorRT nor"),
        (replace(ORIN, dla_cores=1), "dla-1", "fp16", "no DLA core 1"),
        (replace(ORIN, cuda="torch sees no CUDA device"), "dla-0", "fp16", "torch with CUDA"),
        (replace(SERVER, tf32=False), "tensor-cores", "tf32", "do not know TF32"),
        (replace(SERVER, cuda="torch is built without CUDA"), "cuda-cores", "fp32", "without CUDA"),
        (SERVER, "ort-cpu", "int8", "no precision of it"),
    ],
)
def test_an_instance_that_cannot_run_is_refused_with_the_reason(found, accelerator, precision, why):
    with pytest.raises(BadInput, match=why):
        check_runnable(Placement((Instance(accelerator, 1, precision),)), list_runtimes(found))


def test_this_machine_is_read_without_an_error_and_runs_what_is_installed():
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    assert {("torch-cpu", "fp32"), ("ort-cpu", "fp32")} <= set(find_usable_libraries(list_runtimes(detect_libraries())))


def test_a_dla_core_is_asked_of_onnx_runtimes_tensorrt_by_its_options():
    (name, options), *others = select_providers(Instance("dla-1", 8, "int8"))
    assert name == "TensorrtExecutionProvider"
    assert options == {
        "trt_dla_enable": "1", "trt_dla_core": "1", "trt_fp16_enable": "1", "trt_int8_enable": "1",
    }  # fmt: skip
    assert [other for other, _ in others] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert select_providers(Instance("dla-0", 8, "fp16"))[0][1]["trt_int8_enable"] == "0"


def test_a_sweep_has_every_accelerator_alone_and_every_choice_of_two():
    found = [str(one) for one in list_placements([("a", "fp32"), ("b", "fp32")], (1, 8), 2)]
    assert len(found) == 4 + 6
    assert found[0] == "a (batch 1, fp32)"
    assert "2 x b (batch 8, fp32)" in found
