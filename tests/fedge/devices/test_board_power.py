"""A mode as people type it: in MHz, exactly the board's values, and told what is near when it is not."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.cli.power_commands import print_state
from fedge.devices.board_power import format_wire_mode, parse_wire_mode
from fedge.errors import BadInput

ALLOWED = {
    "cores": [2, 4, 6],
    "cpu_khz": [729600, 1344000, 1510400],
    "gpu_hz": [306000000, 510000000, 624750000, 1109250000],
    "emc_hz": [204000000, 665600000, 2133000000],
}


@given(st.tuples(*(st.sampled_from(table) for table in ALLOWED.values())))
def test_every_mode_can_be_typed_as_it_is_shown(values):
    mode = dict(zip(ALLOWED, values, strict=True))

    assert parse_wire_mode(format_wire_mode(mode), ALLOWED) == mode


def test_a_dash_leaves_a_knob_as_it_is():
    assert parse_wire_mode("4/-/510/-", ALLOWED) == {"cores": 4, "gpu_hz": 510000000}


def test_a_clock_may_be_rounded_as_people_do():
    assert parse_wire_mode("-/-/1109.3/-", ALLOWED) == {"gpu_hz": 1109250000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4/1344/510", "CORES/CPU/GPU/MEMORY"),
        ("4/1344/520/2133", "GPU MHz: got 520; .* nearest are 306, 510, 624.75, 1109.25"),
        ("1/1344/510/2133", "cores: got 1; .* nearest are 2, 4, 6"),
        ("4/fast/510/2133", "CPU MHz: got 'fast'"),
        ("4/nan/510/2133", "CPU MHz: got nan"),
        ("4/inf/510/2133", "CPU MHz: got inf"),
        ("-4/1344/510/2133", "cores: got -4"),
    ],
)
def test_a_mode_that_the_board_does_not_have_is_refused_with_what_is_near(text, message):
    with pytest.raises(BadInput, match=message):
        parse_wire_mode(text, ALLOWED)


def test_a_knob_that_the_board_does_not_have_is_told():
    with pytest.raises(BadInput, match="memory MHz: got 2133; -: this board has no such knob"):
        parse_wire_mode("4/1344/510/2133", ALLOWED | {"emc_hz": []})


def test_names_and_reasons_are_shown_as_they_are_whatever_brackets_they_hold():
    out = io.StringIO()
    answer = {
        "mode": {"cores": 4},
        "preset": {"id": 1, "name": "[bold]MINE"},
        "lease": {"name": "x[/y]", "left_s": 3.0},
        "stopped": "it was [too-hot]",
    }

    print_state(Console(file=out, width=200), answer)

    for text in ("[bold]MINE", "x[/y], 3 s left", "it was [too-hot]"):
        assert text in out.getvalue()
