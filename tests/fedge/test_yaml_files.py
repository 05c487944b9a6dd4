"""YAML that users write: what is refused, with which line, and that reading it is bounded."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from fedge.errors import BadInput
from fedge.yaml_files import MAX_DEPTH, MAX_NODES, parse_yaml, read_yaml, read_yaml_mapping, validate_fields

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 3000))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@contextmanager
def _one_line_about(where: str) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        if not str(error).startswith(where) or "\n" in str(error):
            raise AssertionError(str(error)) from error
        raise


@given(VALUES)
def test_what_yaml_writes_is_read_as_it_was(value):
    assert parse_yaml(yaml.safe_dump(value), "x") == value


@given(st.text(alphabet="ab01:-[]{}&*!?|>#'\"\n ,._x~<%@\\\t", max_size=60))
def test_any_text_is_a_value_or_one_line_that_names_the_file(text):
    with suppress(BadInput), _one_line_about("plan.yaml"):
        parse_yaml(text, "plan.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nseed: 2024-13-45\n", "line 2: got text that is not YAML; '2024-13-45' is no timestamp"),
        ("seed: 0x_", "plan.yaml: got .*'0x_' is no int"),
        ("seed: !!int abc", "plan.yaml: got .*'abc' is no int"),
        ("seed: !!timestamp x", "plan.yaml: got .*'x' is no timestamp"),
        ("{!!binary =: 1}", "could not determine a constructor for the tag 'tag:yaml.org,2002:binary'"),
        ("seed: !!int [a]", "plan.yaml: got text that is not YAML; "),
        (f"seed: !{'a' * 5000} x", r"a{200}\.\.\.$"),
        ("? [x, y]\n: 1\n", "line 1: .*a list or mapping stands where a key is wanted"),
        ("{[]: 2}\n", "a list or mapping stands where a key is wanted"),
        ("a: 1\nb: 2\na: 3\n", "line 3: .*the key 'a' stands here twice"),
        ("a: !!python/object:os.system x\n", "line 1: .*could not determine a constructor"),
        ("a: 1\nb: [1\nc: 2\n", "line 2: .*bracket opened here is not closed: .*got ':' in line 3"),
        ("a: {b: [1, 2]\n\n\n", "line 1: .*bracket opened here is not closed: .*the end of the text in line 4"),
        ("a: 1\nb: 'x\nc: 2\n", "line 2: .*quote opened here is not closed"),
        ("a: 1\nb: [1, 2}\n", "line 2: got text that is not YAML; expected ',' or ']', but got '}'"),
        ("&a [*a]\n", "an alias stands inside of what it names"),
        ("[" * 3000 + "]" * 3000, "levels"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        (BOMB, f"more than {MAX_NODES:,} values"),
        (CHAIN, f"more than {MAX_DEPTH} levels"),
    ],
)
def test_a_wrong_document_is_one_line_with_its_place(text, message):
    with pytest.raises(BadInput, match=message) as refused:
        parse_yaml(text, "plan.yaml")
    assert "\n" not in str(refused.value)


def test_aliases_and_merges_are_understood():
    text = "base: &base {device: nano, count: 2}\nfleet: [*base, {<<: *base, count: 3}]\n"
    assert parse_yaml(text, "x")["fleet"] == [{"device": "nano", "count": 2}, {"device": "nano", "count": 3}]


def test_a_file_without_end_is_refused():
    with pytest.raises(BadInput, match="got a larger file; a YAML file of at most 2 MB"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"", "got an empty file; a mapping of keys"),
        (b"- 1\n", "got a list; a mapping of keys"),
        (None, "got no such file; the path of a YAML file"),
    ],
)
def test_a_file_without_a_mapping_is_refused(tmp_path, content, message):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_yaml_mapping(path, "a mapping of keys")


class _Span(BaseModel):
    ends: tuple[int, int] = (0, 1)
    named: dict[str, int] = {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ends": [1]}, r"ends\[1\]: got nothing; this key is needed"),
        ({"named": {1: 2}}, r"named\[1\]: got 1; text, in quotes where YAML would read something else"),
        ({"named": {1: {}}}, r"named\[1\]: got 1; text"),
    ],
)
def test_a_short_pair_and_a_key_that_is_no_text_are_named(content, message):
    with pytest.raises(BadInput, match=f"^span.yaml: {message}"):
        validate_fields(_Span, content, "span.yaml")


class Ranged(BaseModel):
    most_share: Annotated[float, Field(gt=0)] = 1.0
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    count: Annotated[int, Field(ge=1, le=2**31)] = 1
    parts: tuple[Annotated[int, Field(ge=1, le=9)], ...] = ()


@pytest.mark.parametrize(
    ("content", "right"),
    [
        ({"share": 2}, "share: got 2; more than 0 and at most 1"),
        ({"count": 0}, "count: got 0; 1 or more"),
        ({"count": 2**40}, "count: got 1099511627776; from 1 to 2147483648"),
        ({"parts": [3, 0]}, "parts[1]: got 0; from 1 to 9"),
        (
            {"share": 2, "count": 0, "parts": [0]},
            "share: got 2; more than 0 and at most 1. Also wrong: count, parts[0]",
        ),
        ({"most_share": 0, "share": 2}, "most_share: got 0; more than 0. Also wrong: share"),
    ],
)
def test_a_range_is_told_with_both_ends_unless_one_is_far(content, right):
    with pytest.raises(BadInput) as refused:
        validate_fields(Ranged, content, "x.yaml")
    assert str(refused.value) == f"x.yaml: {right}"
