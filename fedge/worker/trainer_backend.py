"""Late binding to torch: functions that jobs need from tasks and trainer, imported when first needed."""

import gc
import importlib
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional

from fedge.worker import sources, tasks


class TorchFacts(NamedTuple):
    """Facts known once torch is imported; None before.

    Attributes:
        cuda_name: Name of the GPU; None on the CPU.
        cuda_total_mb: Memory of the GPU in megabytes (1e6 bytes); None on the CPU.
    """

    torch: Optional[str]
    cuda_name: Optional[str]
    cuda_total_mb: Optional[int]


class TrainerBackend(NamedTuple):
    """Functions that carry out jobs; a test can supply its own. They report a user's errors as ``Refusal``."""

    prepare: Callable[[str], TorchFacts]
    builtin: Callable[[str], Any]
    from_source: Callable[[str, str, str], Any]
    read: Callable[[Dict[str, Any]], Any]
    make_trainer: Callable[[Any, Any, str], Any]
    options: Callable[..., Any]
    choose_device: Callable[[str], str]
    used_cuda_mb: Callable[[], int]
    release: Callable[[], None]
    is_oom: Callable[[BaseException], bool]
    make_inference: Callable[..., Any]


def make_torch_backend() -> TrainerBackend:
    """Return the real backend; torch is imported only when ``prepare`` or a load runs."""
    return TrainerBackend(
        prepare=_prepare_torch,
        builtin=tasks.make_builtin_task,
        from_source=tasks.task_from_source,
        read=sources.read,
        make_trainer=lambda task, data, device: _import_trainer().Trainer(task, data, device),
        options=lambda **fields: _import_trainer().TrainingOptions(**fields),
        choose_device=lambda device: str(_import_trainer().resolve_device(device)),
        used_cuda_mb=_used_cuda_mb,
        release=_release_memory,
        is_oom=_is_oom,
        make_inference=_make_inference,
    )


def _import_trainer() -> Any:
    return importlib.import_module("fedge.worker.trainer")


def _make_inference(*given: Any, **fields: Any) -> Any:
    return importlib.import_module("fedge.worker.service_network").ServiceNetwork(*given, **fields)


def _prepare_torch(device: str) -> TorchFacts:
    chosen = _import_trainer().resolve_device(device)
    torch: Any = importlib.import_module("torch")
    if chosen == "cpu":
        return TorchFacts(str(torch.__version__), None, None)
    torch.zeros(1, device=chosen)  # makes the CUDA context, which takes seconds on a board
    properties = torch.cuda.get_device_properties(0)
    return TorchFacts(str(torch.__version__), str(properties.name), int(properties.total_memory // 1000000))


def _is_oom(error: BaseException) -> bool:
    # Without torch the trainer module is not loaded, and only Python's own MemoryError can occur.
    known: Any = sys.modules.get("fedge.worker.trainer")
    return isinstance(error, MemoryError) if known is None else bool(known.is_oom(error))


def _used_cuda_mb() -> int:
    torch: Any = sys.modules.get("torch")
    return 0 if torch is None else int(torch.cuda.memory_reserved() // 1000000)


def _release_memory() -> None:
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
