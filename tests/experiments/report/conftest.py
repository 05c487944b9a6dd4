"""Runs with a seed of their own, and with samples, beside those that every test of a report has."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, RoundRow, SampleRow


@pytest.fixture
def seeded(make_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run of a seed whose rounds take ``factor`` times the others' time and energy."""

    def made(seed: int, policy: str = "balanced", factor: float = 1.0, **more: Any) -> Path:
        folder = make_run(f"{policy}-{seed}", policy=policy, **more)
        with (folder / "run.yaml").open("a", encoding="utf-8") as file:
            file.write(f"seed: {seed}\n")
        rounds = [
            dataclasses.replace(
                row, energy_j=row.energy_j * factor, end_s=row.end_s * factor, round_s=row.round_s * factor
            )
            for row in read_rows(folder, RoundRow)
        ]
        _store(folder, rounds)
        return folder

    return made


@pytest.fixture
def sampled(make_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run with the samples given."""

    def made(samples: Sequence[SampleRow], **more: Any) -> Path:
        folder = make_run(**more)
        _store(folder, read_rows(folder, RoundRow), samples)
        return folder

    return made


@pytest.fixture
def change_rounds() -> Callable[[Path, Callable[[RoundRow], RoundRow]], Path]:
    """Changes the rows of a run's rounds."""

    def changed(folder: Path, change: Callable[[RoundRow], RoundRow]) -> Path:
        _store(folder, [change(row) for row in read_rows(folder, RoundRow)])
        return folder

    return changed


def _store(folder: Path, rounds: Sequence[RoundRow], samples: Sequence[SampleRow] = ()) -> None:
    """Write the run's store anew, with the clients that it had."""
    clients = read_rows(folder, ClientRow)
    shutil.rmtree(folder / "store")
    tables = RunTables(folder)
    tables.append([*samples, *clients, *rounds])
    tables.close()
