"""Settings of a real board, in one YAML file on the board: name, sockets, data, sensors and telemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedge.devices.local_board import STATE_DIR, BoardLocation
from fedge.errors import BadInput
from fedge.powerd.powerd_client import SOCKET as POWER_SOCKET
from fedge.worker.worker_client import SOCKET as WORKER_SOCKET
from fedge.yaml_files import read_yaml, validate_fields

SETTINGS_PATH = Path("/etc/fedge/node.yaml")
"""Default path of the settings file on a board."""


EXPECTED_SETTINGS = "a board's settings: at least 'board: NAME' (docs/how-to/boards.md)"


class TelemetrySettings(BaseModel):
    """Destination of a board's telemetry, its credentials, and how much is buffered while the server is unreachable.

    Attributes:
        url: HTTPS address of the server, such as ``https://fleet.example:9443/telemetry``.
        ca: Certificate of the only accepted certificate authority of the server.
        certificate: The board's own certificate, which identifies it.
        key: Private key of this certificate.
        spool_dir: Folder that buffers what the server has not acknowledged.
        spool_mb: Largest size of this buffer, in MB; the oldest samples are dropped.
        spool_age_s: Age above which buffered samples are dropped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https://[^/\s?#@]+(/[^\s?#]*)?$")]
    ca: Path
    certificate: Path
    key: Path
    spool_dir: Path = Path("/var/lib/fedge/telemetry")
    spool_mb: Annotated[float, Field(gt=0, le=100_000)] = 64.0
    spool_age_s: Annotated[float, Field(gt=0)] = 7 * 86400.0


class NodeSettings(BaseModel):
    """Settings of a board.

    Attributes:
        board: Name of the board in the experiment's fleet.
        device: Name or YAML file of the catalogue entry; None identifies the board automatically;
            ``gpu-workstation`` is this machine's NVIDIA GPUs.
        power_socket: Socket of the power daemon.
        worker_socket: Socket of the worker.
        state_dir: Folder of the client's own state: claims, history, progress.
        data_folder: Folder with the board's own samples, readable by the worker; None for a partition of the
            experiment's data set.
        sensor: Source of power and temperatures: ``auto``, ``sysfs`` or ``jtop``.
        sample_hz: Readings of the sensors per second.
        root: Root of the board's file system; another one for a recorded board.
        telemetry: Telemetry settings; None sends nothing between replies.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    board: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    device: str | None = None
    power_socket: str = POWER_SOCKET
    worker_socket: str = WORKER_SOCKET
    state_dir: Path = STATE_DIR
    data_folder: str | None = None
    sensor: str = "auto"
    sample_hz: Annotated[float, Field(ge=1, le=20)] = 10.0
    root: str = "/"
    telemetry: TelemetrySettings | None = None

    @property
    def live_dir(self) -> Path:
        """Folder of the board's progress files."""
        return self.state_dir / "live"

    @property
    def place(self) -> BoardLocation:
        """Location of the board's daemon, files and sensors."""
        return BoardLocation(
            self.device,
            power_socket=self.power_socket,
            root=self.root,
            sensor=self.sensor,
            sample_hz=self.sample_hz,
            state_dir=self.state_dir,
            holder=f"run on {self.board}",
        )


def read_settings(path: Path = SETTINGS_PATH) -> NodeSettings:
    """Read the settings file.

    Raises:
        BadInput: The file is missing or invalid; names the field.
    """
    if not path.exists():
        raise BadInput(str(path), "no such file", EXPECTED_SETTINGS)
    content = read_yaml(path)
    if not isinstance(content, dict) or "board" not in content:
        raise BadInput(str(path), "a file that does not name the board", EXPECTED_SETTINGS)
    return validate_fields(NodeSettings, content, str(path))


def load_local_settings(path: Path | None = None) -> NodeSettings:
    """Load settings from ``path``, from the default path if it exists, or use the defaults."""
    settings_path = path or (SETTINGS_PATH if SETTINGS_PATH.exists() else None)
    return read_settings(settings_path) if settings_path else NodeSettings(board="here")
