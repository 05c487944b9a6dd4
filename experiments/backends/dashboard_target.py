"""The target of a dashboard: a run folder, the address of another dashboard, or the settings of a fleet's service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from fedge.errors import BadInput
from fedge.telemetry import run_folder
from fedge.telemetry.store_files import has_store
from fedge.yaml_files import read_yaml, validate_fields

LOOPBACK = "127.0.0.1"


class DashboardSettings(BaseModel):
    """Settings of a real fleet's dashboard service, from a YAML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: Path
    """Folder of the telemetry store."""
    runs: Path | None = None
    """Folder with run folders; the newest one is shown."""
    ingest: Path = Path("/run/fedge-board/ingest.sock")
    """Unix socket on which the proxy forwards the boards' telemetry."""
    host: str = LOOPBACK
    port: Annotated[int, Field(ge=1, le=65_535)] = 8400
    token_file: Path | None = None
    names: tuple[str, ...] = ()
    """Additional host names of the page, e.g. that of a proxy."""
    store_gb: Annotated[float, Field(gt=0)] = 20.0
    store_days: Annotated[float, Field(gt=0)] = 90.0


def parse_address(text: str) -> tuple[str, str | None]:
    """Split a dashboard's URL into its address and the token in its fragment.

    Raises:
        BadInput: If the URL is malformed.
    """
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
        raise BadInput("RUN_OR_ADDRESS", repr(text.partition("#")[0]), "http://HOST:PORT/ or https://... of a page")
    token = parts.fragment.removeprefix("token=") if parts.fragment.startswith("token=") else None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", token


def read_token(path: Path) -> str:
    """Read the access token of another dashboard.

    Raises:
        BadInput: If the file cannot be read or is not ASCII text.
    """
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "a file that cannot be read", "a file that holds the other page's token") from error


def find_run_folder(path: Path) -> Path:
    """Return the path of a run folder, which may not exist yet.

    Raises:
        BadInput: If something else is at the path.
    """
    if path.is_file():
        raise BadInput("RUN_OR_ADDRESS", str(path), "the folder of a run, not a file in it")
    if path.is_dir() and any(path.iterdir()) and not (path / run_folder.RUN_YAML).is_file():
        right = "the folder of a run, or one that is not there yet: the page waits for it"
        raise BadInput("RUN_OR_ADDRESS", f"{path}, which holds other things than a run", right)
    if (path / run_folder.RUN_YAML).is_file():
        has_store(path)  # refuses a store of another version at once
    if not path.exists() and not path.absolute().parent.is_dir():
        raise BadInput(
            "RUN_OR_ADDRESS",
            f"{path}, in a folder that does not exist",
            "the folder of a run (fedge run ... --folder FOLDER)",
        )
    return path.absolute()


def read_settings(path: Path) -> DashboardSettings:
    """Read the service's settings.

    Raises:
        BadInput: In one line that names the field.
    """
    if not path.exists():
        raise BadInput(str(path), "no such file", "the settings of the service (docs/how-to/board-page.md)")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise BadInput(str(path), "a file without settings", "at least 'store: FOLDER' (docs/how-to/board-page.md)")
    return validate_fields(DashboardSettings, content, str(path))
