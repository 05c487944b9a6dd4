"""What a board is told of itself: its name, its sockets, its data, its sensors; one small YAML file on the board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedge.devices.local_board import BoardLocation
from fedge.errors import BadInput
from fedge.powerd.powerd_client import SOCKET as POWER_SOCKET
from fedge.worker.worker_client import SOCKET as WORKER_SOCKET

SETTINGS_PATH = Path("/etc/fedge/client.yaml")
"""Where the file lies on a board."""


EXPECTED_SETTINGS = "a board's settings: at least 'board: NAME' (docs/boards.md)"


class TelemetrySettings(BaseModel):
    """Where a board tells what it does, as whom, and how much it keeps while nobody listens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https://[^/\s?#@]+(/[^\s?#]*)?$")]
    """E.g. ``https://fleet.example:9443/telemetry``."""
    ca: Path
    """The certificate of whoever vouches for the server; no other is believed."""
    certificate: Path
    key: Path
    """The board's own, by which the server knows it."""
    spool_dir: Path = Path("/var/lib/fedge/telemetry")
    spool_mb: Annotated[float, Field(gt=0, le=100_000)] = 64.0
    spool_age_s: Annotated[float, Field(gt=0)] = 7 * 86400.0


class NodeSettings(BaseModel):
    """A board's own settings; ``root`` is for recorded boards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    board: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    device: str | None = None
    """A name or YAML file of the catalogue, where the board is not recognised by itself."""
    power_socket: str = POWER_SOCKET
    worker_socket: str = WORKER_SOCKET
    state_dir: Path = Path("/var/lib/fedge/client")
    data_folder: str | None = None
    """The board's own samples, in a folder that the worker may read; None: a partition of the experiment's data set."""
    sensor: str = "sysfs"
    sample_hz: Annotated[float, Field(ge=1, le=20)] = 10.0
    root: str = "/"
    telemetry: TelemetrySettings | None = None
    """None: nothing is sent between replies."""

    @property
    def live_dir(self) -> Path:
        """Where whoever works on this board tells how far it is."""
        return self.state_dir / "live"

    @property
    def place(self) -> BoardLocation:
        """Where the board's daemon, files and sensors are."""
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
    """The settings in a file; raises ``BadInput`` that names the field."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(
            str(path), "no such file", "a board's settings: at least 'board: NAME' (docs/boards.md)"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(str(path), "an unreadable file", " ".join(str(error).split())) from error
    if not isinstance(content, dict) or "board" not in content:
        raise BadInput(str(path), "a file that does not name the board", EXPECTED_SETTINGS)
    try:
        return NodeSettings.model_validate(content)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        known = ", ".join((TelemetrySettings if len(first["loc"]) > 1 else NodeSettings).model_fields)
        right = f"known: {known}" if first["type"] == "extra_forbidden" else str(first["msg"])
        raise BadInput(f"{path}: {field}", repr(first["input"]), right) from error


def load_local_settings(path: Path | None = None) -> NodeSettings:
    """Those of the file that is named or lies in its place, else what a board has by default."""
    found = path or (SETTINGS_PATH if SETTINGS_PATH.exists() else None)
    return read_settings(found) if found else NodeSettings(board="here")
