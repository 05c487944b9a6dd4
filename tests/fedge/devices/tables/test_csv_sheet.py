"""A CSV is read whatever its separator, line ends and byte order mark, and its bad lines are named."""

import pytest

from fedge.devices.tables.csv_sheet import decode_text, parse_number, parse_sheet
from fedge.errors import BadInput

NEEDED = ("a", "b")


def _values(text: str) -> list[tuple[str, str]]:
    return [(row.cells["a"], row.cells["b"]) for row in parse_sheet("f.csv", text, NEEDED).rows]


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1.5,2\n3,4\n",
        "a;b\n1.5;2\n3;4\n",
        "a;b\n1,5;2\n3;4\n",
        "a\tb\n1,5\t2\n3\t4\n",
        "a,b\r\n1.5,2\r\n3,4\r\n",
        " A , b \n 1.5, 2 \n3 ,4",
        '"a","b"\n"1.5","2"\n3,4\n',
        "b,note,a\n2,x,1.5\n4,,3\n",
        "a,b,,\n1.5,2,,\n\n,,,\n3,4,,\n",
        decode_text("f.csv", b"\xef\xbb\xbfa,b\n1.5,2\n3,4\n"),
    ],
)
def test_the_same_numbers_come_out_of_every_way_to_write_them(text):
    assert _values(text) == [("1.5", "2"), ("3", "4")]


def test_a_quoted_comma_in_a_comma_file_is_no_decimal_point():
    assert _values('a,b\n"1,500",2\n') == [("1,500", "2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", r"f\.csv: got no column b; columns a,b \(found a, c\)"),
        ("", r"f\.csv: got no header; columns a,b$"),
        ("a,b,A\n1,2,3\n", "got two columns a; every column once"),
        ("a,b\n1,2\n1,2,3\n", "line 3: got 3 cells; 2, as in the first line"),
        ("a,b\n1," + "9" * 200_000 + "\n", "line 2: got a line that is not CSV"),
    ],
)
def test_what_is_no_table_is_named(text, message):
    with pytest.raises(BadInput, match=message) as error:
        parse_sheet("f.csv", text, NEEDED)

    assert "\n" not in str(error.value)


def test_a_short_line_has_empty_cells():
    assert _values("a,b\n1\n") == [("1", "")]


def test_a_long_cell_is_cut_in_the_message():
    with pytest.raises(BadInput) as error:
        parse_number("f.csv: line 2", "a", "x" * 500)

    assert len(str(error.value)) < 120
