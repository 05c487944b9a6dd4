"""The late door to torch: what the jobs need of the tasks and the trainer, imported when the first job needs it."""

import gc
import importlib
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional

from fedge.worker import sources, tasks


class TorchFacts(NamedTuple):
    """What is known once torch is loaded."""

    torch: Optional[str]
    cuda_name: Optional[str]
    cuda_total_mb: Optional[int]


class TrainerBackend(NamedTuple):
    """What carries out the jobs, so that a test can put its own in. What a user did wrong they raise as ``Refusal``."""

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
    """The trainer itself; loads torch only when ``prepare`` or a load runs."""
    return TrainerBackend(
        prepare=_prepare_torch,
        builtin=tasks.make_builtin_task,
        from_source=tasks.task_from_source,
        read=sources.read,
        make_trainer=lambda task, data, device: _import_trainer().Trainer(task, data, device),
        options=lambda **fields: _import_trainer().Options(**fields),
        choose_device=lambda device: str(_import_trainer().usable(device)),
        used_cuda_mb=_used_cuda_mb,
        release=_release_memory,
        is_oom=_is_oom,
        make_inference=_make_inference,
    )


def _import_trainer() -> Any:
    return importlib.import_module("fedge.worker.trainer")


def _make_inference(*given: Any, **fields: Any) -> Any:
    return importlib.import_module("fedge.worker.service_network").Inference(*given, **fields)


def _prepare_torch(device: str) -> TorchFacts:
    chosen = _import_trainer().usable(device)
    torch: Any = importlib.import_module("torch")
    if chosen == "cpu":
        return TorchFacts(str(torch.__version__), None, None)
    torch.zeros(1, device=chosen)  # makes the CUDA context, which takes seconds on a board
    properties = torch.cuda.get_device_properties(0)
    return TorchFacts(str(torch.__version__), str(properties.name), int(properties.total_memory // 1000000))


def _is_oom(error: BaseException) -> bool:
    # Without torch the trainer cannot be asked; then Python's own sign is the only one.
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
