"""What boards tell through the proxy, on a real nginx: by a certificate alone, in the name that stands in it."""

import http.client
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from contracts.board_requests import board_request
from cryptography import x509

from experiments.backends.sim_backend import find_free_port
from experiments.fleet.key_folder import (
    Signer,
    create_keys,
    encode_certificate,
    encode_key,
    make_board,
    make_ca,
    new_key,
    read_signer,
)
from experiments.fleet.nginx_proxy import NginxProxy, build_configuration
from experiments.fleet.revocation import record_certificate, revoke_certificates

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not here")
LIMIT_S = 10.0


class Echo(BaseHTTPRequestHandler):
    """Says what it was asked: path, headers, size of the body."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = [[name.lower(), value] for name, value in self.headers.items()]
        said = json.dumps({"path": self.path, "headers": headers, "bytes": len(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def address_string(self) -> str:
        return "local"

    def log_message(self, *args: object) -> None:
        """Nothing is written."""


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@dataclass(frozen=True, slots=True)
class Front:
    """A running nginx: the folder of the fleet's keys, the port that boards reach."""

    keys: Path
    port: int

    @property
    def ca(self) -> Signer:
        return read_signer(self.keys / "ca.crt", self.keys / "ca.key")

    def asked(
        self, path: str, shown: Path | None = None, body: bytes = b"{}", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """What a request is answered, from who shows the certificate and key in the file ``shown``."""
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        if shown is not None:
            context.load_cert_chain(shown)
        link = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=LIMIT_S)
        try:
            link.request("POST", path, body=body, headers=headers or {})
            answer = link.getresponse()
            return answer.status, answer.read().decode()
        finally:
            link.close()


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


@contextmanager
def nginx(folder: Path, port: int) -> Iterator[None]:
    main = folder / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    main.write_text(
        f"daemon off; {user} worker_processes 1; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/fedge.conf; }}\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([str(NGINX), "-c", str(main), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                assert time.monotonic() < ends, "nginx does not listen"
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    create_keys(folder / "keys", ["127.0.0.1"], datetime.now(UTC), days=2)
    with open_front(folder) as front:
        yield front


@contextmanager
def open_front(folder: Path, revocations: Path | None = None) -> Iterator[Front]:
    """nginx before a SuperLink that echoes, over TLS as a SuperLink, and a board service that echoes on its socket."""
    superlink = HTTPServer(("127.0.0.1", 0), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "keys" / "server.crt", folder / "keys" / "server.key")
    superlink.socket = context.wrap_socket(superlink.socket, server_side=True)
    # The path of a Unix socket is short.
    ingest = folder / "i.sock"
    port = find_free_port()
    text = build_configuration(
        NginxProxy(
            folder / "keys",
            superlink_port=superlink.server_port,
            fleet_port=port,
            addresses=("127.0.0.1",),
            telemetry=ingest,
            revocations=revocations,
        )
    )
    (folder / "fedge.conf").write_text(text, encoding="utf-8")
    with serving(superlink), serving(UnixServer(str(ingest), Echo)), nginx(folder, port):
        yield Front(folder / "keys", port)


def shown(folder: Path, ca: Signer, board: str, days: int = 1, ago: timedelta = timedelta()) -> Path:
    """A file with a board's key and the certificate that ``ca`` gives it."""
    key = new_key()
    made = make_board(ca, board_request(board, key=key), board, datetime.now(UTC) - ago, days)
    path = folder / f"{board}.pem"
    path.write_bytes(encode_key(key) + encode_certificate(made))
    return path


def test_a_board_is_told_on_by_the_name_in_its_certificate(front, tmp_path):
    status, said = front.asked("/telemetry", shown(tmp_path, front.ca, "nano-1.lab_2"), body=b"x" * 1000)

    assert status == 200
    told = json.loads(said)
    assert told["path"] == "/telemetry"
    assert told["bytes"] == 1000
    assert [value for name, value in told["headers"] if name == "x-fedge-board"] == ["nano-1.lab_2"]


@pytest.mark.parametrize("name", ["X-Fedge-Board", "x-fedge-board", "X_Fedge_Board", "X-FEDGE-BOARD"])
def test_no_header_of_the_sender_gives_it_another_name(front, tmp_path, name):
    status, said = front.asked("/telemetry", shown(tmp_path, front.ca, "nano-1"), headers={name: "orin-1"})

    assert status == 200
    assert [value for key, value in json.loads(said)["headers"] if "fedge" in key] == ["nano-1"]
    assert "orin-1" not in said


def test_how_a_batch_is_packed_is_told_on(front, tmp_path):
    given = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    _, said = front.asked("/telemetry", shown(tmp_path, front.ca, "nano-1"), headers=given)

    told = dict(json.loads(said)["headers"])
    assert (told["content-type"], told["content-encoding"]) == ("application/json", "gzip")


@pytest.mark.parametrize("headers", [{}, {"X-Fedge-Board": "nano-1"}])
def test_without_a_certificate_nobody_tells_anything(front, headers):
    assert front.asked("/telemetry", headers=headers) == (403, "Refused: a board shows its certificate here.\n")


def test_a_certificate_of_another_ca_is_refused_whatever_its_name(front, tmp_path):
    other = make_ca(new_key(), datetime.now(UTC), days=2)

    for path in ("/telemetry", "/v1/fleet/x"):
        status, said = front.asked(path, shown(tmp_path, other, "nano-1"))
        assert (status, said) == (
            403,
            "Refused: this certificate is not by the fleet's CA, has ended, or is revoked.\n",
        )


def test_a_certificate_that_has_ended_is_refused_with_a_status_that_is_not_about_the_message(front, tmp_path):
    # Older than the fleet's own CA: nobody but its key can make one.
    ended = shown(tmp_path, front.ca, "nano-1", days=1, ago=timedelta(days=2))

    assert front.asked("/telemetry", ended)[0] == 403


def test_a_revoked_board_is_refused_and_the_others_and_its_next_certificate_are_not(tmp_path):
    now, keys = datetime.now(UTC), tmp_path / "keys"
    create_keys(keys, ["127.0.0.1"], now, days=2)
    ca = read_signer(keys / "ca.crt", keys / "ca.key")
    stolen, other = shown(tmp_path, ca, "nano-1"), shown(tmp_path, ca, "nano-2")
    for path in (stolen, other):
        record_certificate(keys, x509.load_pem_x509_certificate(path.read_bytes()))

    assert revoke_certificates(ca, folder=keys, listed=keys / "ca.crl", board="nano-1", now=now) == 1
    with open_front(tmp_path, keys / "ca.crl") as front:
        assert [front.asked(path, stolen)[0] for path in ("/telemetry", "/v1/fleet/x")] == [403, 403]
        assert front.asked("/telemetry", other)[0] == 200
        assert front.asked("/v1/fleet/x")[0] == 200
        assert front.asked("/telemetry", shown(tmp_path, ca, "nano-1"))[0] == 200


def test_the_servers_own_certificate_is_that_of_no_board(front, tmp_path):
    server = tmp_path / "server.pem"
    server.write_bytes((front.keys / "server.key").read_bytes() + (front.keys / "server.crt").read_bytes())

    assert front.asked("/telemetry", server)[0] == 403


def test_a_batch_that_is_too_large_goes_no_further(front, tmp_path):
    assert front.asked("/telemetry", shown(tmp_path, front.ca, "nano-1"), body=b"x" * (1 << 20 | 1))[0] == 413


@pytest.mark.parametrize("with_certificate", [False, True])
def test_the_fleets_paths_are_as_before(front, tmp_path, with_certificate):
    certificate = shown(tmp_path, front.ca, "nano-1") if with_certificate else None
    status, said = front.asked("/v1/fleet/pull", certificate, body=b"x" * (2 << 20))

    assert status == 200
    assert json.loads(said)["path"] == "/v1/fleet/pull"
    assert json.loads(said)["bytes"] == 2 << 20
    assert front.asked("/health", certificate)[0] == 200
    assert front.asked("/v1/control/start", certificate)[0] == 403


@pytest.mark.parametrize(
    "path", ["/telemetry/", "/telemetry/../v1/control/x", "/Telemetry", "/telemetry%00", "/api/view"]
)
def test_nothing_else_of_the_board_service_is_reached_through_the_boards_port(front, tmp_path, path):
    assert front.asked(path, shown(tmp_path, front.ca, "nano-1"))[0] in {400, 403}
