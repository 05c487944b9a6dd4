"""Test hosts: real systemd machines in network namespaces, with sshd, addresses and faults of their own.

    with fleet_hosts({"nano-1": "nano", "orin-nano-1": "orin-nano-jp6"}) as fleet:
        fleet.server.run("systemctl is-system-running")   # the SuperLink's host; a board: fleet.boards["nano-1"]
        fleet.playbook("site.yml")                        # the real playbooks over ssh, with fleet.inventory
        fleet.wait_online(fleet.boards)                   # every board's SuperNode is at the SuperLink
        fleet.boards["nano-1"].kill()                     # a power cut; start() brings it back with the same disk

In a test take the fixture ``fleet`` of conftest.py (four boards, bare) or ``provisioned``. Without pytest:
``PYTHONPATH=tests:. .venv/bin/python -m fleet.hosts`` starts the server and four boards, says how to reach them, and
ends them at the end of its input. ``CannotHave`` says why a machine cannot have hosts. Several fleets may stand side by
side; what a killed process left is cleaned up by the next that takes its number.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet import jetson
from fleet.base import CannotHave, base_root, cache, ready_machine, say
from fleet.network import Net

ROOT = Path(__file__).resolve().parents[2]
BOARDS = {"nano-1": "nano", "xavier-nx-1": "xavier-nx", "agx-orin-1": "agx-orin-jp6", "orin-nano-1": "orin-nano-jp6"}
PYTHONS = {"nano": "3.6", "tx2": "3.6", "xavier-nx": "3.8", "agx-xavier": "3.8"}
"""The version of the board's own Python; 3.11 for the others."""
SERVER, SERVER_AT, BOARDS_FROM = "fedge-server", 1, 11
INSTALLED = "/opt/fedge"
"""Where fedge is installed on the server: its environment and a copy of the checkout's packages."""
LISTING = "/usr/lib/fedge-server/flower python /usr/lib/fedge-server/nodes.py list"
"""What the playbooks put on the server to list boards: Flower's own command tells no names."""
CLOCKED = ("fedge-supernode", "fedge-ready", "fedge-superexec")
"""What lives by the board's clock: they refuse each other where only one of them is off."""
STATE = "/var/lib/fedge/node"
CPUS_VARIABLE = "FLEET_CPUS"
"""The cores of each board's worker, such as 0.2, where others' work on this machine slows its steps now and then."""
CPU_GROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
PRECEDENCE = 32768
"""Against 1024 of a process in no group: a worker has its cores also beside many others."""
PERIOD_US = 10_000
"""Shorter than a step: 59 to 82 ms with 0.2 cores."""
FLEETS = 8
START_LIMIT_S, RUN_LIMIT_S, END_LIMIT_S = 180.0, 120.0, 30.0


@dataclass(slots=True)
class Host:
    """One host; its root is an overlay over the base, so that it survives being stopped."""

    name: str
    number: int
    net: Net
    folder: Path
    """The host's own folder on this machine, with its ``root`` and the log of its console."""
    ssh_options: list[str]
    binds: dict[str, Path]
    kind: str | None = None
    """The recorded board that it is; None for the server."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return self.net.address(self.number)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def group(self) -> str:
        """The name of its control group on this machine."""
        return _group(self.net, self.number)

    @property
    def log(self) -> str:
        """What systemd said on the console, of all starts."""
        return (self.folder / "console").read_text(encoding="utf-8", errors="replace")

    # --------------------------------------------------------------------------------------------------- on and off
    def launch(self) -> None:
        """Switch it on; ``wait`` says when it is up."""
        if self.kind is not None:
            jetson.boot(self.root, self.kind)
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={self.root}", "--boot"]
        command += [f"--network-namespace-path=/run/netns/{self.net.namespace(self.number)}", f"--machine={self.name}"]
        # For the firewall on the server: of its own network alone.
        command += ["--capability=CAP_NET_ADMIN", "--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        command += ["--console=pipe"]
        command += [f"--bind-ro={here}:{there}" for there, here in self.binds.items()]
        script = "".join(f"echo $$ > {group}/cgroup.procs; " for group in _cgroups(self.net, self.number, make=True))
        with (self.folder / "console").open("ab") as console:
            self.process = subprocess.Popen(
                ["sh", "-c", f"{script}exec {shlex.join(command)}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            )
        (self.folder / "pid").write_text(f"{self.process.pid} {_born(self.process.pid)}")

    def wait(self, limit_s: float = START_LIMIT_S) -> None:
        """Until systemd has started everything and sshd answers."""
        end_s = time.monotonic() + limit_s
        said = "nothing yet"
        while time.monotonic() < end_s:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"{self.name} went off at its start:\n{self.log[-2000:]}")
            done = self.ssh("systemctl is-system-running", limit_s=30.0)
            said = done.stdout.strip() or done.stderr.strip()
            if said in {"running", "degraded"}:
                return
            time.sleep(0.3)
        raise RuntimeError(f"{self.name} is not up after {limit_s:.0f} s: {said}\n{self.log[-2000:]}")

    def start(self) -> None:
        """On again, with the same disk; back when it is up."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """A power cut."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        for each in (number, signal.SIGKILL):
            self.process.send_signal(each)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_LIMIT_S)
                break
        self.process = None
        _end_all(_cgroups(self.net, self.number))

    def pace_worker(self) -> None:
        """Give its worker the cores of ``FLEET_CPUS``, until that ends; the ClientApp beside it takes none of them."""
        cpus = os.environ.get(CPUS_VARIABLE)
        if not cpus:
            return
        top = next((each for each in CPU_GROUPS if each.exists()), None)
        if top is None:
            raise CannotHave(f"{CPUS_VARIABLE} needs control groups of version 1 for processors")
        group = top / self.group
        group.mkdir(exist_ok=True)
        quota_us = int(float(cpus) * PERIOD_US)
        for name, value in (("cfs_period_us", PERIOD_US), ("cfs_quota_us", quota_us), ("shares", PRECEDENCE)):
            (group / f"cpu.{name}").write_text(str(value))
        for command in (b"fedge.worker\0", b"fedge.worker.trainer_process\0"):
            for process in list_processes(self, command):
                (group / "cgroup.procs").write_text(str(process))

    # ------------------------------------------------------------------------------------------------------- inside
    def ssh(self, command: str, limit_s: float = RUN_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """What a shell on the host makes of ``command``, as root; 255 where nobody answers."""
        words = ["ssh", *self.ssh_options, f"root@{self.address}", command]
        try:
            return subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            text = [part.decode() if isinstance(part, bytes) else part or "" for part in (error.stdout, error.stderr)]
            return subprocess.CompletedProcess(words, 255, text[0], f"{text[1]}no answer within {limit_s:.0f} s")

    def run(self, command: str, limit_s: float = RUN_LIMIT_S) -> str:
        """Its standard output; raises where it fails."""
        done = self.ssh(command, limit_s)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {command!r} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    # ------------------------------------------------------------------------------------------------------- faults
    def cut(self) -> None:
        """Pull its network cable."""
        self.net.cut(self.number)

    def mend(self) -> None:
        """Plug it in again."""
        self.net.mend(self.number)

    def shape(self, rate: str | None) -> None:
        """Its network at ``rate`` both ways, as tc writes it (``1mbit``); None: unlimited."""
        self.net.shape(self.number, rate)

    def fill_disk(self, free_kb: int = 0) -> None:
        """Leave ``free_kb`` on the disk of the client's folder, which becomes a small file system of its own."""
        keep, path = "/run/fedge-kept", shlex.quote(STATE)
        self.run(
            f"set -e; rm -rf {keep}; cp -a {path} {keep}; used=$(du -sk {keep} | cut -f1);"
            f"mount -t tmpfs -o size=$((used + {free_kb} + 64))k,mode=2750,uid=fedge-app,gid=fedge tmpfs {path};"
            f"cp -a {keep}/. {path}/; rm -rf {keep};"
            f"dd if=/dev/zero of={path}/.full bs=1k count=$(($(df -k --output=avail {path} | tail -n 1) - {free_kb}))"
            " status=none"
        )

    def empty_disk(self) -> None:
        """The disk as it was, with what was written meanwhile where it fitted."""
        keep, path = "/run/fedge-kept", shlex.quote(STATE)
        self.run(f"set -e; rm -rf {keep} {path}/.full; cp -a {path} {keep}; umount {path}; cp -a {keep}/. {path}/")

    def clock_off(self, seconds: float) -> None:
        """Its SuperNode and the runner of its ClientApps live this much in the future (or past); 0: now."""
        folders = " ".join(f"/etc/systemd/system/{unit}.service.d" for unit in CLOCKED)
        if seconds:
            found = self.run("ls /usr/lib/*/faketime/libfaketime.so.1").strip()
            lines = ["[Service]", f"Environment=LD_PRELOAD={found}", f"Environment=FAKETIME={seconds:+.0f}"]
            words = " ".join(shlex.quote(line) for line in lines)
            self.run(f"set -e; for f in {folders}; do mkdir -p $f; printf '%s\\n' {words} > $f/clock.conf; done")
        else:
            self.run(f"for f in {folders}; do rm -f $f/clock.conf; rmdir --ignore-fail-on-non-empty $f || true; done")
        self.run(f"systemctl daemon-reload && systemctl restart {' '.join(CLOCKED)}")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of one test fleet and what the control node needs for them."""

    folder: Path
    server: Host
    boards: dict[str, Host]
    inventory: Path

    @property
    def all(self) -> list[Host]:
        return [self.server, *self.boards.values()]

    def playbook(self, name: str, *options: str, limit_s: float = 1200.0) -> subprocess.CompletedProcess[str]:
        """One of the playbooks with this fleet's inventory; its exit code says how it went."""
        program = Path(sys.prefix) / "bin" / "ansible-playbook"
        words = [str(program), name, "-i", str(self.inventory), *options]
        env = {**os.environ, **self.environment}
        return subprocess.run(
            words, cwd=ROOT / "ansible", env=env, capture_output=True, text=True, check=False, timeout=limit_s
        )

    def fedge(self, *words: str, limit_s: float = 1200.0) -> subprocess.CompletedProcess[str]:
        """``fedge fleet`` with this fleet's inventory, as a person gives it."""
        with self.begun(*words) as process:
            try:
                said = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, *said)

    def begun(self, *words: str) -> subprocess.Popen[str]:
        """The same, while it goes on."""
        program = Path(sys.prefix) / "bin" / "fedge"
        env = {**os.environ, **self.environment, "FEDGE_INVENTORY": str(self.inventory), "COLUMNS": "100"}
        env["XDG_STATE_HOME"] = str(self.folder / "state")
        return subprocess.Popen(
            [str(program), "fleet", *words],
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def online(self) -> set[str]:
        """The names under which boards are online at the SuperLink."""
        told = self.server.ssh(LISTING)
        if told.returncode != 0:
            return set()
        nodes = json.loads(told.stdout.splitlines()[-1])["nodes"]
        return {node["name"] for node in nodes if node["status"] == "online"}

    def wait_online(self, boards: Iterable[str], limit_s: float = START_LIMIT_S) -> None:
        """Until these boards are online at the SuperLink."""
        end_s = time.monotonic() + limit_s
        while not set(boards) <= (found := self.online()):
            if time.monotonic() > end_s:
                raise RuntimeError(f"online after {limit_s:.0f} s: {sorted(found)} of {sorted(boards)}")
            time.sleep(1.0)

    @property
    def environment(self) -> dict[str, str]:
        """What a program that runs playbooks is to find in its environment."""
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(self.folder / "ansible")}


@contextmanager
def fleet_hosts(boards: Mapping[str, str] | None = None) -> Iterator[Hosts]:
    """The server and a board of each kind (a name of ``jetsons.BOARDS``) by its name, up; all is gone with the block.

    Raises ``CannotHave`` where this machine cannot have them.
    """
    from fleet.inventory import write_inventory

    ready_machine()
    base = base_root()
    with ExitStack() as stack:
        net, folder = _number(stack)
        stack.callback(_clean, net, folder)
        options = _keys(net, folder)
        net.make()
        server = _server(base, net, folder, options)
        found = {
            name: _board(base, net, folder, options, BOARDS_FROM + i, name, kind)
            for i, (name, kind) in enumerate((boards or BOARDS).items())
        }
        say(f"starting {1 + len(found)} hosts")
        hosts = Hosts(folder, server, found, folder / "inventory.yml")
        _known(hosts)
        for host in hosts.all:
            host.launch()
        write_inventory(hosts)  # while they start
        for host in hosts.all:
            host.wait()
        stack.callback(_end, hosts)
        yield hosts


# --------------------------------------------------------------------------------------------------------- the fleet
def _number(stack: ExitStack) -> tuple[Net, Path]:
    """The first number that no living process has, its folder empty, nothing of an earlier process left."""
    (cache() / "fleets").mkdir(exist_ok=True)
    for number in range(1, FLEETS + 1):
        lock = stack.enter_context((cache() / "fleets" / f"{number}.lock").open("a"))
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            net, folder = Net(number), cache() / "fleets" / str(number)
            _clean(net, folder)
            folder.mkdir(mode=0o700)
            return net, folder
    raise CannotHave(f"{FLEETS} test fleets run here already")


def _clean(net: Net, folder: Path) -> None:
    """End and remove whatever this fleet, or a killed one of its number, has left."""
    for note in folder.glob("hosts/*/pid"):
        pid, born = note.read_text().split()
        if _born(int(pid)) == born:
            os.kill(int(pid), signal.SIGKILL)
    _end_all([group for host in range(1, 255) for group in _cgroups(net, host)])
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        place = line.split()[1].replace("\\040", " ")
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)
    net.clean()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(_control_paths(net), ignore_errors=True)


def _end(hosts: Hosts) -> None:
    for host in hosts.all:
        host.kill()


def _keys(net: Net, folder: Path) -> list[str]:
    """The key that opens every host, and the options of ssh that name a file with the rest."""
    _keygen(folder / "id", "ed25519")
    places = _control_paths(net)
    places.mkdir(mode=0o700)
    told = {
        "BatchMode": "yes",
        "ConnectTimeout": "5",
        "IdentitiesOnly": "yes",
        "IdentityFile": folder / "id",
        "UserKnownHostsFile": folder / "known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    config = folder / "ssh"
    config.write_text("".join(f"{name} {value}\n" for name, value in told.items()), encoding="utf-8")
    return ["-F", str(config)]


def _control_paths(net: Net) -> Path:
    """A short path, since sockets lie in it."""
    return Path("/run") / f"fedge-test-fleet-{net.number}"


def _known(hosts: Hosts) -> None:
    lines = []
    for host in hosts.all:
        key = host.root / "etc/ssh/ssh_host_ed25519_key"
        _keygen(key, "ed25519")
        lines.append(f"{host.address} {' '.join(key.with_suffix('.pub').read_text().split()[:2])}")
    (hosts.folder / "known_hosts").write_text("\n".join(lines) + "\n")


def _keygen(path: Path, kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", path.name, "-f", path], check=True)


# ------------------------------------------------------------------------------------------------------------- hosts
def _server(base: Path, net: Net, folder: Path, options: list[str]) -> Host:
    """The SuperLink's host with fedge installed: a copy of the packages, this environment's libraries bound in."""
    python = jetson.project_python()
    host = _host(base, net, folder, options, SERVER_AT, SERVER)
    at = f"{INSTALLED}/.venv"
    jetson.put_python(host.root, python, at)
    host.binds.update(jetson.binds(python, at))
    installed = host.root / INSTALLED.lstrip("/")
    for name in ("fedge", "clients", "experiments", "server"):
        shutil.copytree(ROOT / name, installed / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, installed)
    subprocess.run(["chmod", "-R", "a+rX", installed / "fedge", installed / "clients"], check=True)
    subprocess.run(["chmod", "-R", "a+rX", installed / "experiments", installed / "server"], check=True)
    for program in (*(Path(sys.prefix) / "bin").glob("fl*"), Path(sys.prefix) / "bin" / "fedge"):
        _put_program(installed, program, at)
    return host


def _put_program(installed: Path, program: Path, at: str) -> None:
    """A program of the environment that starts there, and finds the copied packages before any other."""
    _, _, body = program.read_text().partition("\n")
    first = f"import sys\nsys.path.insert(0, {INSTALLED!r})\n"
    target = installed / ".venv" / "bin" / program.name
    target.write_text(f"#!{at}/bin/python3\n{first if program.name == 'fedge' else ''}{body}")
    target.chmod(0o755)


def _board(base: Path, net: Net, folder: Path, options: list[str], number: int, name: str, kind: str) -> Host:
    own = jetson.board_python(PYTHONS.get(kind, "3.11"))
    host = _host(base, net, folder, options, number, name)
    host.kind = kind
    jetson.put_board(host.root, kind, own)
    host.binds.update(jetson.binds(own, jetson.PLACE))
    return host


def _host(base: Path, net: Net, folder: Path, options: list[str], number: int, name: str) -> Host:
    place = folder / "hosts" / name
    _overlay(base, place)
    net.join(number)
    root = place / "root"
    (root / "etc/hostname").write_text(f"{name}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {name}\n{net.address(SERVER_AT)} {SERVER}\n")
    secret = root / "root/.ssh"
    secret.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(folder / "id.pub", secret / "authorized_keys")
    return Host(name, number, net, place, options, {}, None)


def _overlay(base: Path, place: Path) -> None:
    """The base with a layer of the host's own; a copy where the kernel refuses to lay one over the other."""
    for name in ("root", "upper", "work"):
        (place / name).mkdir(parents=True)
    layers = f"lowerdir={base},upperdir={place / 'upper'},workdir={place / 'work'}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", layers, place / "root"]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        (place / "root").rmdir()
        subprocess.run(["cp", "-a", base, place / "root"], check=True)


# --------------------------------------------------------------------------------------------------------- processes
def _born(pid: int) -> str | None:
    """When the process began, in the kernel's ticks; a number that is used again belongs to another."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


def list_processes(host: Host, command: bytes) -> list[int]:
    """The host's processes with ``command`` in their arguments, each followed by a null byte, by this machine's ids.

    The control group that they are in is the host's own.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if host.group in (folder / "cgroup").read_text() and command in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _group(net: Net, number: int) -> str:
    """The name of a host's control group."""
    return f"fedge-fleet-{net.number}-{number}"


def _cgroups(net: Net, number: int, *, make: bool = False) -> list[Path]:
    """The host's own control groups, so that no systemd sees the processes of another; those there are, or all."""
    found = [group for top in CPU_GROUPS if (group := top / _group(net, number)).exists()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, own = line.split(":", 2)
        tops = {"name=systemd": "/sys/fs/cgroup/systemd", "": "/sys/fs/cgroup/unified"}
        top = Path(tops.get(kinds, "/nowhere"))
        if not kinds and not top.exists():
            top = Path("/sys/fs/cgroup")
        if (top / "cgroup.procs").exists():
            group = top / own.lstrip("/") / _group(net, number)
            if make:
                group.mkdir(exist_ok=True)
            if group.exists():
                found.append(group)
    return found


def _end_all(groups: Sequence[Path]) -> None:
    """End what is left in the groups and remove them."""
    for group in groups:
        end_s = time.monotonic() + END_LIMIT_S
        while group.exists() and time.monotonic() < end_s:
            for list_ in (group / "cgroup.procs", *group.rglob("cgroup.procs")):
                with suppress(OSError):
                    for pid in map(int, list_.read_text().split()):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            for folder in sorted([group, *(path for path in group.rglob("*") if path.is_dir())], reverse=True):
                with suppress(OSError):
                    folder.rmdir()
            time.sleep(0.05)


def main() -> int:
    """Hosts for a person, until the end of the input or SIGTERM."""
    begun_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        _offer_hosts(begun_s)
    except CannotHave as reason:
        print(f"no test hosts: {reason}", file=sys.stderr)
        return 1
    return 0


def _offer_hosts(begun_s: float) -> None:
    """Start hosts, say how to reach them, and end them at the end of the input."""
    with fleet_hosts() as hosts:
        print(f"up after {time.monotonic() - begun_s:.0f} s; the inventory: {hosts.inventory}")
        for host in hosts.all:
            print(f"{host.name:14} {shlex.join(['ssh', *host.ssh_options, f'root@{host.address}'])}")
        for name, value in {**hosts.environment, "FEDGE_INVENTORY": str(hosts.inventory)}.items():
            print(f"export {name}={shlex.quote(value)}")
        print("Ctrl-D ends the hosts", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())
