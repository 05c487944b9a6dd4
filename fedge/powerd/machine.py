"""The machine as files and commands below a root: ``/`` on a board, a recorded tree in tests and on a workstation."""

import contextlib
import errno
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

COMMAND_LIMIT_S = 20.0
"""Time limit of a command in seconds; nvpmodel answers within a second or two."""
DEATH_LIMIT_S = 1.0
"""Seconds to wait for a killed command: one that hangs in a driver ends only when the driver returns."""
LONGEST_READ = 1 << 20
COMMAND_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
NUMBER = re.compile(r"(?<!\d)-?\d{1,20}(?!\d)")


class Machine:
    """Files and commands of a board; paths are absolute as on the board (``/sys/...``) and prefixed with ``root``."""

    def __init__(self, root: str = "/") -> None:
        self.root = str(Path(root).resolve())

    def path(self, path: str) -> Path:
        """Return the real location of a board's path; raises ``OSError`` for what can be no path."""
        if "\0" in path:
            raise OSError(errno.EINVAL, "a path with a zero byte")
        return Path(self.root) / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file without surrounding white space; raises ``OSError``."""
        with self.path(path).open("rb") as file:
            return file.read(LONGEST_READ).decode("utf-8", "replace").strip(" \t\r\n\0")

    def write(self, path: str, text: str) -> None:
        """Write a control file in one system call, as the kernel requires; never creates a file; raises ``OSError``."""
        target = os.open(str(self.path(path)), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(target, text.encode("ascii"))
            if self.root != "/":
                os.ftruncate(target, len(text))  # a recorded root holds plain files
        finally:
            os.close(target)

    def exists(self, path: str) -> bool:
        """Return whether the file or folder exists."""
        return self.path(path).exists()

    def glob(self, pattern: str) -> List[str]:
        """Return the board's paths that match, sorted; links are not resolved."""
        skip = len(self.root.rstrip("/"))
        return sorted(str(found)[skip:] for found in Path(self.root).glob(pattern.lstrip("/")))

    def run(self, command: Sequence[str]) -> Tuple[int, str]:
        """Run a command of the board without input; below a recorded root, the command of that root.

        Returns:
            The exit code and the combined output of both streams.

        Raises:
            OSError: There is no such command, or it did not end within ``COMMAND_LIMIT_S`` and was killed with its
                children.
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
    """Kill a command and its children without waiting for their output, which a child may keep open."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DEATH_LIMIT_S)


def read_int(machine: Machine, path: str) -> int:
    """Return the integer in a file.

    Raises:
        OSError: The file cannot be read or does not contain a single integer.
    """
    text = machine.read(path)
    for base in (0, 10):  # "007" is no Python number
        with contextlib.suppress(ValueError):
            return int(text, base)
    raise OSError(f"{path} holds {text[:80]!r}, not a whole number")


def try_read_int(machine: Machine, path: str) -> Optional[int]:
    """Return the integer in a file; None if there is none."""
    try:
        return read_int(machine, path)
    except OSError:
        return None


def try_read_text(machine: Machine, path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return machine.read(path)
    except OSError:
        return ""


def read_numbers(machine: Machine, path: str) -> Tuple[int, ...]:
    """Return the distinct positive numbers in a file, ascending; empty if it cannot be read."""
    return tuple(sorted({int(found) for found in NUMBER.findall(try_read_text(machine, path)) if int(found) > 0}))
