"""The machine as files and commands below a root: ``/`` on a board, a recorded tree in tests and on a desk."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import List, Sequence, Tuple

COMMAND_LIMIT_S = 20.0
"""No command of a board's takes longer; nvpmodel answers within a second or two."""
DEATH_LIMIT_S = 1.0
"""How long a killed command is waited for, chosen by us: one that hangs in a driver dies only when that lets go."""
LONGEST_READ = 1 << 20
COMMAND_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Machine:
    """Paths are absolute as on the board (``/sys/...``); ``root`` is put before every one of them."""

    def __init__(self, root: str = "/") -> None:
        self.root = str(Path(root).resolve())

    def path(self, path: str) -> Path:
        """Where a board's path really lies."""
        return Path(self.root) / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a file without the white space around it; raises ``OSError``."""
        with self.path(path).open("rb") as file:
            return file.read(LONGEST_READ).decode("utf-8", "replace").strip(" \t\r\n\0")

    def write(self, path: str, text: str) -> None:
        """Write a control file in one go, as the kernel wants it; raises ``OSError``. Never makes a file."""
        target = os.open(str(self.path(path)), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(target, text.encode("ascii"))
            if self.root != "/":
                os.ftruncate(target, len(text))  # a recorded root holds plain files
        finally:
            os.close(target)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return self.path(path).exists()

    def glob(self, pattern: str) -> List[str]:
        """The board's paths that match, sorted; links are not resolved."""
        skip = len(self.root.rstrip("/"))
        return sorted(str(found)[skip:] for found in Path(self.root).glob(pattern.lstrip("/")))

    def run(self, command: Sequence[str]) -> Tuple[int, str]:
        """Exit code and output (both streams) of a command of the board, given nothing to read.

        Below a recorded root the command is that root's own. Raises ``OSError`` when there is none, and for one that
        does not end within ``COMMAND_LIMIT_S``: it is killed, with all that it started.
        """
        process = subprocess.Popen(
            [str(self._command(command[0])), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output: bytes = process.communicate(timeout=COMMAND_LIMIT_S)[0]
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{command[0]} did not end within {COMMAND_LIMIT_S:g} s") from error
        finally:
            if process.returncode is None:
                _kill(process)
        return process.returncode, output.decode("utf-8", "replace")

    def _command(self, name: str) -> Path:
        for folder in COMMAND_FOLDERS:
            path = self.path(f"{folder}/{name}")
            if path.is_file() and os.access(str(path), os.X_OK):
                return path
        raise OSError(f"no command {name} on this machine")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a command and its children without waiting for their output, which a child may hold open for ever."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_LIMIT_S)
