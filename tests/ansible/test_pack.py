"""What hosts are sent: the whole project and nothing else, a start that works, the texts of proxy and firewall."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
from contracts.board_requests import board_request
from contracts.programs import load_program
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from experiments.fleet.key_folder import create_keys

ANSIBLE = Path(__file__).resolve().parents[2] / "ansible"


@pytest.fixture(scope="module")
def pack() -> ModuleType:
    return load_program(ANSIBLE / "pack.py")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a wheel of uv whose program is a text."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "lock").write_text("# a lock\nnumpy==2.0\nuv==0.12.24\n", encoding="utf-8")
    with zipfile.ZipFile(folder / "uv-0.12.24-py3-none-manylinux2014_aarch64.whl", "w") as wheel:
        wheel.writestr("uv-0.12.24.data/scripts/uv", "the program")
    return folder


def asked(pack: ModuleType, wheels: Path, out: Path, *more: str):
    out.mkdir()
    given = ["--machine=aarch64", f"--lock={wheels / 'lock'}", f"--wheels={wheels}", *more]
    return pack._parser().parse_args(["bootstrap", *given, str(out)])


def unpacked(pack: ModuleType, script: Path, tmp_path: Path) -> Path:
    """What the script makes, run as on a board but below a folder of the test's own."""
    target = tmp_path / "board"
    content = script.read_bytes()
    assert content.count(pack.TARGET.encode(), 0, len(pack.HEADER)) == 2
    header = pack.HEADER.replace(pack.TARGET, str(target))
    script.write_bytes(header.encode() + content[len(pack.HEADER) :])
    subprocess.run(["sh", str(script)], check=True)
    return target


def test_the_client_is_packed_under_the_same_name_until_a_file_changes(pack, tmp_path, monkeypatch):
    root = tmp_path / "project"
    for folder in pack.CLIENT:
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("", encoding="utf-8")
    (root / "LICENSE").write_text("free", encoding="utf-8")
    (root / "fedge" / "notes.txt").write_text("not sent", encoding="utf-8")
    monkeypatch.setattr(pack, "ROOT", root)

    first = pack.client(tmp_path)
    content = first.read_bytes()
    again = pack.client(tmp_path)
    (root / "fedge" / "__init__.py").write_text("changed", encoding="utf-8")
    changed = pack.client(tmp_path)

    assert again == first
    assert again.read_bytes() == content
    assert changed != first
    with tarfile.open(first) as packed:
        assert sorted(packed.getnames()) == sorted(["LICENSE", *(f"{name}/__init__.py" for name in pack.CLIENT)])


def test_the_client_of_this_project_has_its_command_line_and_its_catalogue(pack, tmp_path):
    with tarfile.open(pack.client(tmp_path)) as packed:
        names = set(packed.getnames())

    assert {
        "LICENSE",
        "fedge/__init__.py",
        "clients/app.py",
        "experiments/cli/main.py",
        "fedge/client/real.py",
    } <= names
    assert [name for name in names if name.startswith("fedge/devices/catalogue/") and name.endswith(".yaml")]


def test_the_start_puts_uv_there(pack, wheels, tmp_path):
    script = pack.bootstrap(asked(pack, wheels, tmp_path / "out"))
    program = unpacked(pack, script, tmp_path) / "bin" / "uv"

    assert program.read_text(encoding="utf-8") == "the program"
    assert program.stat().st_mode & 0o777 == 0o755


def test_what_was_packed_is_taken_again_until_what_it_is_made_of_changes(pack, wheels, tmp_path, monkeypatch):
    given = asked(pack, wheels, tmp_path / "out")
    first = pack.bootstrap(given)
    with monkeypatch.context() as patched:
        patched.setattr(pack, "_write", lambda *_: pytest.fail("packed again"))
        again = pack.bootstrap(given)
    with zipfile.ZipFile(next(wheels.glob("uv-*.whl")), "w") as wheel:
        wheel.writestr("uv-0.12.24.data/scripts/uv", "another program")

    assert again == first
    assert pack.bootstrap(given) != first


def test_a_folders_wheels_are_packed_once_and_two_folders_never_into_one_file(pack, wheels, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "numpy-2.0-py3-none-any.whl").write_bytes(b"a wheel")
    made = [pack.wheels(folder, tmp_path) for folder in (wheels, other, wheels)]

    assert made[0] == made[2] != made[1]
    with tarfile.open(made[1]) as packed:
        assert packed.getnames() == ["numpy-2.0-py3-none-any.whl"]


def test_a_folder_without_wheels_is_named(pack, tmp_path):
    with pytest.raises(SystemExit, match="got no wheel"):
        pack.wheels(tmp_path, tmp_path)


def test_the_start_carries_a_python_with_its_links(pack, wheels, tmp_path):
    archive = tmp_path / "cpython.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        entry = tarfile.TarInfo("python/bin/python3.11")
        entry.size, entry.mode, entry.uid = 5, 0o755, 1000
        made.addfile(entry, io.BytesIO(b"a=b\n\0"))
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, "python3.11"
        made.addfile(link)
    script = pack.bootstrap(asked(pack, wheels, tmp_path / "out", f"--python={archive}"))
    python = unpacked(pack, script, tmp_path) / "versions" / "archive" / "bin" / "python3"

    assert python.is_symlink()
    assert python.read_bytes() == b"a=b\n\0"


def test_an_archive_that_leads_out_of_its_folder_is_refused(pack, wheels, tmp_path):
    archive = tmp_path / "cpython.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        made.addfile(tarfile.TarInfo("python/../../etc/passwd"), io.BytesIO(b""))

    with pytest.raises(SystemExit, match="one folder 'python' would be right"):
        pack.bootstrap(asked(pack, wheels, tmp_path / "out", f"--python={archive}"))


def test_a_folder_of_wheels_without_uv_is_named(pack, wheels, tmp_path):
    next(wheels.glob("uv-*.whl")).unlink()

    with pytest.raises(SystemExit, match=r"got no uv-0\.12\.24"):
        pack.bootstrap(asked(pack, wheels, tmp_path / "out"))


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("proxy", []),
        ("proxy", ["--listen=192.0.2.10", "--port=9000", "--management=10.0.0.0/24", "--management-port=9001"]),
        ("proxy", ["--superlink-port=8001"]),
        ("firewall", ["--account=fedge-link", "--account=www-data", "--superlink-port=8001"]),
    ],
)
def test_a_server_is_sent_the_text_that_the_command_of_the_same_name_writes(pack, what, options):
    from typer.testing import CliRunner

    from experiments.cli.fleet_commands import fleet

    written = CliRunner().invoke(fleet, [what, *options])

    assert written.exit_code == 0
    assert pack._make_answer(pack._parser().parse_args([what, *options])) == written.stdout


def test_a_configuration_is_made_without_anything_but_python_installed():
    command = [sys.executable, "-I", "-S", str(ANSIBLE / "pack.py"), "proxy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "listen 0.0.0.0:9443 ssl;" in done.stdout


def test_settings_that_make_no_configuration_are_refused_in_a_sentence():
    command = [sys.executable, str(ANSIBLE / "pack.py"), "proxy", "--management=0.0.0.0/0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("--management: got 0.0.0.0/0, which is everybody;")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys", ["fleet.lan"], datetime.now(UTC), days=30)
    return tmp_path / "keys"


def signed(keys: Path, board: str, request: str, *more: str) -> subprocess.CompletedProcess[str]:
    """What the program answers to a board's request on its standard input."""
    program = [sys.executable, str(ANSIBLE / "pack.py"), "certificate", board]
    given = [f"--ca={keys / 'ca.crt'}", f"--ca-key={keys / 'ca.key'}", *more]
    return subprocess.run([*program, *given], input=request, capture_output=True, text=True, check=False)


def request_of(board: str) -> str:
    return board_request(board).public_bytes(serialization.Encoding.PEM).decode()


def test_a_boards_request_is_answered_with_its_certificate(keys):
    done = signed(keys, "nano-1", request_of("nano-1"), "--days=3")
    made = x509.load_pem_x509_certificate(done.stdout.encode())

    assert done.returncode == 0, done.stderr
    assert made.subject.rfc4514_string() == "CN=nano-1"
    assert 2 <= (made.not_valid_after_utc - datetime.now(UTC)).days <= 3
    assert [path.read_text(encoding="utf-8") for path in (keys / "issued").iterdir()] == [done.stdout]


@pytest.mark.parametrize("request_", ["", "rubbish", "nano-2"])
def test_what_is_no_request_of_this_board_is_refused_in_one_line(keys, request_):
    done = signed(keys, "nano-1", request_of("nano-2") if request_ == "nano-2" else request_)

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_ca_key_that_others_may_read_signs_nothing(keys):
    (keys / "ca.key").chmod(0o644)
    done = signed(keys, "nano-1", request_of("nano-1"))

    assert done.returncode == 2
    assert "chmod 600" in done.stderr
