"""A fleet as it is run for real: keys, a SuperLink on loopback with node authentication, nginx before it."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from contracts.desk import desk
from contracts.processes import program, running

from experiments.backends.run_processes import private_environment
from experiments.backends.run_submission import write_connection
from experiments.backends.sim_backend import find_free_port
from experiments.fleet.key_folder import create_keys
from experiments.fleet.nginx_proxy import NginxProxy, build_configuration
from fedge.experiment import SuperlinkSpec

BOARDS = {"board-1": "orin-nano-jp6", "board-2": "xavier-nx"}
NGINX = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
{user}
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/fedge.conf;
}}
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the SuperLink listens, where boards come in, and where a management network would."""

    superlink: int
    boards: int
    management: int


@dataclass(frozen=True, slots=True)
class Secured:
    """A fleet that runs: its folder, the folder of its keys, its ports."""

    folder: Path
    keys: Path
    ports: Ports

    @property
    def control(self) -> SuperlinkSpec:
        return self.reached(self.ports.superlink)

    def reached(self, port: int, ca: Path | None = None) -> SuperlinkSpec:
        """The SuperLink as a client of ``port`` sees it."""
        root = str(ca or self.keys / "ca.crt")
        return SuperlinkSpec(address=f"127.0.0.1:{port}", root_certificates=root, connect_timeout_s=60)

    def flwr(self, superlink: SuperlinkSpec, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of Flower's commands, as somebody who reaches ``superlink`` would give it."""
        home = self.folder / "flwr-cli"
        home.mkdir(exist_ok=True)
        write_connection(home, superlink)
        env = private_environment(os.environ, home) | {"FLWR_HOME": str(home)}
        return subprocess.run(
            [program("flwr"), *arguments], env=env, cwd=home, capture_output=True, text=True, check=False, timeout=60
        )

    def runs(self) -> list[dict[str, object]]:
        """The SuperLink's runs, asked where one may ask."""
        done = self.flwr(self.control, "list", "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.index("{") :])["runs"]


@contextmanager
def secured_fleet(folder: Path) -> Iterator[Secured]:
    """The SuperLink and its proxy, without boards; skips the test where nginx cannot be had."""
    nginx = _nginx()
    ports = Ports(find_free_port(), find_free_port(), find_free_port())
    keys = folder / "keys"
    create_keys(keys, ["127.0.0.1"], datetime.now(UTC), days=2)
    with ExitStack() as stack:
        link = ["flower-superlink", "--host", "127.0.0.1", "--port", str(ports.superlink), "--enable-supernode-auth"]
        link += ["--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key")]
        link += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--disable-runtime-dependency-installation"]
        stack.enter_context(running(link, folder / "superlink", says("Uvicorn running on")))
        stack.enter_context(_proxied(nginx, folder / "nginx", keys, ports))
        yield Secured(folder, keys, ports)


def _nginx() -> str:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with suppress(subprocess.TimeoutExpired):
            install = ["apt-get", "install", "--yes", "--no-install-recommends", "nginx-light"]
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(install, env=env, capture_output=True, check=False, timeout=300)
        found = shutil.which("nginx", path="/usr/sbin")
    if found is None:
        pytest.skip("nginx is not here and cannot be installed")
    return found


@contextmanager
def _proxied(nginx: str, folder: Path, keys: Path, ports: Ports, management: str | None = None) -> Iterator[None]:
    folder.mkdir(parents=True)
    networks = () if management is None else (management,)
    settings = NginxProxy(keys, ports.superlink, ports.boards, ("127.0.0.1",), networks, ports.management)
    (folder / "fedge.conf").write_text(build_configuration(settings), encoding="utf-8")
    # Pytest's folders are closed to other users, so the worker keeps the user that owns them.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, user=user), encoding="utf-8")
    with running([nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)], folder / "home", listens(ports.boards)):
        yield


@contextmanager
def managed(secured: Secured, folder: Path, management: str) -> Iterator[Ports]:
    """Another proxy before the same SuperLink, which lets the network ``management`` give commands."""
    ports = Ports(secured.ports.superlink, find_free_port(), find_free_port())
    with _proxied(_nginx(), folder / "nginx", secured.keys, ports, management):
        yield ports


def new_node_key(path: Path) -> Path:
    """A board's key pair, made as docs/how-to/fleet.md says."""
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def supernode(secured: Secured, *options: str) -> list[str]:
    """The command of a SuperNode that comes in by the boards' port."""
    node = ["flower-supernode", "--superlink", f"127.0.0.1:{secured.ports.boards}"]
    return [*node, "--host", "127.0.0.1", "--port", str(find_free_port()), *options]


@contextmanager
def boards(secured: Secured) -> Iterator[None]:
    """Two boards with keys of their own, registered by name, each with its SuperNode."""
    with ExitStack() as stack:
        for name, kind in BOARDS.items():
            place = secured.folder / name
            place.mkdir()
            found = stack.enter_context(desk(kind, place, board=name))
            settings = place / "node.yaml"
            settings.write_text(json.dumps(found.settings.model_dump(mode="json")), encoding="utf-8")
            key = new_node_key(place / "node.key")
            done = secured.flwr(secured.control, "supernode", "register", f"{key}.pub", "--name", name)
            assert done.returncode == 0, done.stdout + done.stderr
            options = ["--root-certificates", str(secured.keys / "ca.crt"), "--auth-supernode-private-key", str(key)]
            command = supernode(secured, *options, "--node-config", f'settings="{settings}"')
            stack.enter_context(running(command, place / "node", says("Starting Flower SuperNode")))
        yield


Up = Callable[[str], bool]


def says(text: str) -> Up:
    return lambda log: text in log


def listens(port: int) -> Up:
    def up(_log: str) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return up
