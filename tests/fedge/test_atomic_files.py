"""A file is replaced as a whole or stays as it was, and nothing is left beside it."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contracts.crashing import disk_full

from fedge.atomic_files import probe_folder, replace_file, write_text


def test_a_file_and_its_folder_are_created_then_replaced(tmp_path):
    path = tmp_path / "new" / "file.txt"

    write_text(path, "one\n")
    write_text(path, "zwö\r\n")

    assert path.read_bytes() == "zwö\r\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_two_threads_that_write_one_file_do_not_share_a_temporary_file(tmp_path):
    path = tmp_path / "a"
    with replace_file(path) as part:
        part.write_text("first")
        with ThreadPoolExecutor(1) as other:
            other.submit(write_text, path, "second").result()
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_probed_without_a_trace_whether_it_is_there_or_not(tmp_path):
    for folder in (tmp_path, tmp_path / "new" / "deep"):
        probe_folder(folder)
    assert [*tmp_path.iterdir()] == []

    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        probe_folder(tmp_path / "file" / "below")
    with pytest.raises(FileNotFoundError):  # nobody makes files there, not even root
        probe_folder(type(tmp_path)("/proc/x"))


def test_after_an_error_the_old_content_remains(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail() -> None:
        with replace_file(path) as part:
            part.write_text("half")
            raise RuntimeError("full")

    with pytest.raises(RuntimeError):
        fail()

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_of_a_full_disk_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_text", disk_full)

    with pytest.raises(OSError, match="No space left on device") as caught:
        write_text(tmp_path / "file.txt", "new")

    assert caught.value.filename == str(tmp_path / "file.txt")


def test_a_process_killed_while_it_writes_leaves_the_old_content(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    program = (
        "import os, signal, sys; from pathlib import Path; from fedge.atomic_files import probe_folder, replace_file\n"
        "with replace_file(Path(sys.argv[1])) as part:\n"
        "    part.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env={**os.environ})

    assert ended.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
