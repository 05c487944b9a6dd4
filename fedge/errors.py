"""The errors that fedge raises on purpose: each says what was got, what would be right, and what to do."""

from __future__ import annotations


class FedgeError(Exception):
    """Base of every error that fedge raises on purpose; its text is meant for the user."""


class BadInput(FedgeError):
    """The user's input (a file, a field, an option) is wrong.

    ``where`` names the file and field, e.g. ``"exp.yaml: policy.power_w"``; the message is one line of the form
    ``<where>: got <got>; <right>``.
    """

    def __init__(self, where: str, got: str, right: str) -> None:
        self.where, self.got, self.right = where, got, right
        super().__init__(f"{where}: got {got}; {right}")


class UnknownName(BadInput):
    """A name that no registry entry, preset or device carries; lists the known ones."""

    def __init__(self, where: str, name: str, known: tuple[str, ...]) -> None:
        self.name, self.known = name, known
        super().__init__(where, repr(name), f"known: {', '.join(known)}")


class RunFailed(FedgeError):
    """A run that started could not go on (Flower, Ray or every client failed)."""


class BoardError(FedgeError):
    """A board did not do what it was asked: a mode that did not stick, a lost sensor, a worker that died."""


class SensorLost(BoardError):
    """A sensor that is needed cannot be read."""


class ModeNotSet(BoardError):
    """A power mode could not be set; the mode found before is set again, or the text says that it is not."""


class OutOfMemory(BoardError):
    """A training step needed more memory than the board has for it."""


class WorkerFailed(BoardError):
    """The worker could not do its work.

    ``kind`` is that of its answer (``fedge.worker.refusal.KINDS``), ``unreachable`` or ``died`` when there was none, or
    ``cancelled`` when its training was stopped before the end.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)
