"""A server of telemetry as it is run for real: its own process on a unix socket, and before it a proxy that ends TLS.

``python tests/contracts/live_server.py FOLDER SOCKET`` is that process.
"""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from contracts.processes import wait_for

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


class LiveServer:
    """The process behind the proxy; ``start`` and ``kill`` as often as one likes."""

    def __init__(self, folder: Path, socket_path: Path) -> None:
        self.folder, self.socket = folder, socket_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__)), str(self.folder), str(self.socket)]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment)
        wait_for(self._answers, "the server listens", 300.0)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the server ended"
        with socket.socket(socket.AF_UNIX) as trial, suppress(OSError):
            trial.connect(str(self.socket))
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(30)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


class UnixConnection(http.client.HTTPConnection):
    """http over a unix socket."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def post(
    path: Path, body: bytes | None, board: str | None, content_type: str = "application/json"
) -> tuple[int, bytes]:
    """One message straight to the socket, as the proxy would send it; without a body it asks for one."""
    connection = UnixConnection(path)
    headers = {"Content-Type": content_type, **({} if board is None else {"X-Fedge-Board": board})}
    try:
        connection.request("POST" if body is not None else "GET", "/telemetry", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def heard(path: Path) -> dict[str, Any]:
    """What the server knows of every board, for tests alone."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/heard")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


class _Forward(BaseHTTPRequestHandler):
    """What the proxy of a fleet does: the board's name is its certificate's, whatever it says itself."""

    protocol_version = "HTTP/1.1"
    target: Path
    lose_answers = 0
    """So many answers are thrown away: the message came, and the board does not know."""

    def do_POST(self) -> None:
        self.forward(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        self.forward(None)

    def forward(self, body: bytes | None) -> None:
        subject = dict(pair[0] for pair in self.connection.getpeercert()["subject"])
        try:
            status, answer = post(self.target, body, subject["commonName"], self.headers["Content-Type"] or "")
        except OSError:
            status, answer = 502, b""
        if type(self).lose_answers:
            type(self).lose_answers -= 1
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        return


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a client that is refused is no news


class Proxy:
    """TLS with certificates of both sides before a unix socket; ``cut`` ends its listening, ``open`` begins it anew."""

    def __init__(self, keys: Path, target: Path) -> None:
        self._keys = keys
        self.handler = type("Forward", (_Forward,), {"target": target})
        self._server: _Quiet | None = None
        self.port = 0

    def open(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._keys / "server.crt", self._keys / "server.key")
        context.load_verify_locations(self._keys / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        server = _Quiet(("127.0.0.1", self.port), self.handler)
        # The handshake is the handler's thread's work: a client that is refused must not hold up the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self._server, self.port = server, server.server_address[1]
        self._connections: list[socket.socket] = []
        taken = server.get_request

        def remembered() -> Any:
            found = taken()
            self._connections.append(found[0])
            return found

        server.get_request = remembered
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def live_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that is started, and gone at the end."""
    server = LiveServer(tmp_path / "fleet", tmp_path / "ingest.sock")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def make_keys(folder: Path, *boards: str) -> Path:
    """A CA, a server's certificate for loopback, and one for each board."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    from experiments.fleet import key_folder as c

    folder.mkdir(parents=True)
    now, ca_key = datetime.now(UTC), c.new_key()
    ca = c.make_ca(ca_key, now, 30)
    (folder / "ca.crt").write_bytes(c.encode_certificate(ca.certificate))
    server_key = c.new_key()
    (folder / "server.key").write_bytes(c.encode_key(server_key))
    (folder / "server.crt").write_bytes(c.encode_certificate(c.make_server(ca, server_key, [], now, 7)))
    for board in boards:
        key = c.new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, board)])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA384())
        (folder / f"{board}.key").write_bytes(c.encode_key(key))
        (folder / f"{board}.crt").write_bytes(c.encode_certificate(c.make_board(ca, request, board, now, 7)))
    return folder


def main(folder: str, socket_path: str) -> None:
    import uvicorn
    from fastapi import FastAPI

    from server.dashboard.telemetry_ingest import ingest_app, open_ingest

    Path(socket_path).unlink(missing_ok=True)
    ingest = open_ingest(Path(folder))
    try:
        app = FastAPI()
        app.get("/heard")(lambda: {board: asdict(heard) for board, heard in ingest.board_telemetry().items()})
        app.mount("/", ingest_app(ingest))
        uvicorn.run(app, uds=socket_path, log_level="warning", access_log=False)
    finally:
        ingest.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
