"""An app's own training, run step by step: its optimiser waits after every step until the next one may begin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fedge.types import TrainResult

R = TypeVar("R")


class TrainingEnded(Exception):
    """The app's training ended before the steps that were expected of it."""


class StepGate(Generic[R]):
    """A ``fedge.protocols.Training`` around a call that trains by itself.

    The call runs in a thread of its own. A hook of torch on all optimisers counts its steps, and holds it after the
    last step that was allowed. A call without an optimiser of torch counts as one step.
    """

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._changed = threading.Condition()
        self._allowed: int | None = 0
        """Steps that may have been done in all; None for no limit."""
        self._result: R | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="fedge-training", daemon=True)
        self.done = 0

    def advance(self, steps: int) -> None:
        """Let the call do ``steps`` more steps and wait until they are done.

        Raises:
            TrainingEnded: The call ended before.
            Exception: What the call raised.
        """
        with self._changed:
            target = self.done + steps
            self._allowed = target
            self._start_or_wake()
            self._changed.wait_for(lambda: self._ended or self.done >= target)
            if self._error is not None:
                raise self._error
            if self.done < target:
                raise TrainingEnded(f"the app's training ended after {self.done} of {target} steps")

    def run_to_end(self) -> int:
        """Let the call run to its end, and return the number of its steps, at least 1.

        Raises:
            Exception: What the call raised.
        """
        self.release()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.done

    def try_end(self) -> bool:
        """Let the call do one more step at most; return whether it ended without one."""
        with self._changed:
            before = self.done
            self._allowed = before + 1
            self._start_or_wake()
            self._changed.wait_for(lambda: self._ended or self.done > before)
            return self.done == before

    def release(self) -> None:
        """Hold the call no longer."""
        with self._changed:
            self._allowed = None
            self._start_or_wake()

    def finish(self) -> R:
        """Wait for the end of the call and return its result."""
        self.run_to_end()
        assert self._result is not None
        return self._result

    def result(self) -> TrainResult:
        """Return a result without arrays: the app sends its own."""
        return TrainResult({}, float("nan"), float("nan"))

    def _start_or_wake(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        handle = _hook_optimisers(self._count_step)
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        finally:
            if handle is not None:
                handle.remove()
            with self._changed:
                self.done = max(self.done, 1)
                self._ended = True
                self._changed.notify_all()

    def _count_step(self, *_: Any) -> None:
        if threading.current_thread() is not self._thread:
            return
        with self._changed:
            if self._allowed is not None and self.done + 1 >= self._allowed:
                _wait_for_gpu()  # what was queued belongs to the steps before the boundary
            self.done += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allowed is None or self.done < self._allowed)


def _hook_optimisers(hook: Callable[..., None]) -> Any:
    """Call ``hook`` after every step of any optimiser of torch; return a handle, or None without torch."""
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook
    except ImportError:
        return None
    return register_optimizer_step_post_hook(hook)


def _wait_for_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
