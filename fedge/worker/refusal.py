"""What the trainer's parts say when they cannot do what was asked: what was got, what would be right, what to do."""


class Refusal(Exception):
    """``where`` is the field, file or part, with what was ``got`` and what would be ``right``.

    ``kind`` is the error's kind on the worker's wire.
    """

    kind = "bad-request"

    def __init__(self, where: str, got: str, right: str) -> None:
        self.where, self.got, self.right = where, got, right
        super().__init__(f"{where}: got {got}; {right}")
