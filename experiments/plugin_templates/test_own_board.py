"""The contract of a board file, by itself and in a run. Start it with
``pytest --import-mode=prepend test_own_board.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedge.devices.catalogue import load_spec

BOARD = Path(__file__).with_name("own_board.yaml")


def test_its_tables_rise_and_its_presets_are_within_them() -> None:
    spec = load_spec(BOARD)

    tables = (spec.cores, spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    assert [table for table in tables if list(table) != sorted(set(table))] == []
    for preset in spec.presets.values():
        assert all(value in table for value, table in zip(preset.knobs, tables, strict=True))


def test_its_figures_are_plausible_and_each_names_its_source() -> None:
    spec = load_spec(BOARD)

    assert 0 < spec.idle_w.value < spec.max_w.value
    for figure in (spec.ram_gb, spec.idle_w, spec.max_w, spec.gpu_gflops, spec.mem_gbps, spec.cpu_score):
        assert figure.value > 0
        assert figure.source


def test_a_run_on_emulated_ones_finishes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a run needs the extra sim")
    import fedge

    run = fedge.run(
        {
            "backend": "local",
            "rounds": 2,
            "fleet": [{"device": str(BOARD), "count": 2}],
            "workload": {"task": "none"},
            "data": {"samples": 2000},
        },
        folder=tmp_path / "run",
        quiet=True,
    )

    assert run.state == "finished"
    assert run.query("select count(*) as n from clients where status = 'done'", arrow=True).to_pylist() == [{"n": 4}]
