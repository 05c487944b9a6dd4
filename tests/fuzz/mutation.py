"""Hostile inputs made from good ones: bytes changed, JSON values exchanged, frames filled anew."""

import io
import json
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from fedge.telemetry import wal

Mutate = Callable[[Random, bytes], bytes]
DEEP = 3_000
"""Levels of a nested list: more than Python's recursion limit."""
HOSTILE_JSON = (
    *("1e999", "-1e999", "NaN", "-Infinity", "9" * 4_400, "-" + "9" * 400, "1e308", "5e-324", "0", "-0.0", "-1", "1.5"),
    *("9223372036854775808", "18446744073709551616", "100000000", "null", "true", "[]", "{}", '""', "[[]]", "[null]"),
    *(r'"\ud800"', r'"\u0000"', r'"\u001b[31mred\u0007"', r'"a\nb\r\nc"', r'"\u202e"', '"../../etc/passwd"', '"/"'),
    *('"' + "x" * 5_000 + '"', "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, '{"a":1,"a":2}', '{"":0}'),
    *("[" + ",".join("9" for _ in range(2_000)) + "]", '"nan"', '"1e999"', '"٣"', '"0x' + "f" * 50 + '"', "01", "+1"),
)
HOSTILE_TEXT = (
    *("1e999", "nan", "-inf", "9" * 4_400, "0x" + "f" * 4_000, "-1", "0", "1e308", "5e-324", "0.5", "٣", "1_000"),
    *(
        "",
        " ",
        '"',
        "'",
        "\0",
        "\x1b[31m",
        "\r",
        "\n\n",
        "\t",
        ",",
        ";",
        "#",
        ":",
        "- ",
        "\ufeff",
        "x" * 5_000,
        " " * 5_000,
        "\u2028",
    ),
    *("[" * DEEP, "{a: " * 200, "&a [*a]", "!!python/object:os.system", "<", ">", "=", "\ud800", "true", "null", "~"),
    *(
        "2024-13-45",
        "0x_",
        "!!int abc",
        "!!timestamp x",
        "!!binary =",
        "!!set {a, b}",
        "? [x, y]",
        "{[]: 2}",
        "|",
        "%YAML 9",
    ),
    "["
    + ", ".join(f"&a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(12))
    + "]",  # 9 ** 12 values
    "{a: &m {x: 1}, b: {<<: [" + ", ".join(["*m"] * 500) + "]}}",
    *(
        "1" + ":0" * 2_000,
        "- " * DEEP,
        "? " * DEEP,
        '"' + "\\x41" * 2_000 + '"',
        "a: " * 2_000,
        "\n---\n",
        "!" + "a" * 2_000,
    ),
)
HOSTILE_HEADERS = (
    *(
        b"Content-Length: -1",
        b"Content-Length: 9" + b"9" * 400,
        b"Content-Length: 4\r\nContent-Length: 5",
        b"\0",
        b"\r",
        b"\n",
    ),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Expect: 100-continue",
        b": x",
        b" x",
    ),
    *(
        b"Upgrade: websocket\r\nConnection: Upgrade",
        b"Cookie: " + b"a=b; " * 2_000,
        b"Cookie: =;;=\xff",
        b"Host: [::1",
        b"Host:",
    ),
    *(
        b"X" * 40_000 + b": y",
        b"X: " + b"y" * 70_000,
        b"X: y\r\n" * 3_000,
        b"Authorization: Bearer \xe9",
        b"If-None-Match: \xff",
    ),
    *(
        b"Host: 127.0.0.1:1\r\nHost: other",
        b"Content-Type: application/octet-stream",
        b"X-Fedge-Board: ../x",
        b"Range: bytes=9-1",
    ),
)
HOSTILE_PATHS = (
    *(
        b"/../../etc/passwd",
        b"/static/../../../x",
        b"/static/%2e%2e/%2e%2e/x",
        b"/%00",
        b"/%ff%fe",
        b"*",
        b"//x/y",
        b"http://x/",
    ),
    *(
        b"/api/boards/" + b"%27" * 500,
        b"/api/boards/' or 1=1",
        b"/api/rounds/" + b"9" * 5_000,
        b"/api/rounds/-1",
        b"/api/rounds/1e9",
    ),
    *(
        b"/api/boards/",
        b"/api/view?" + b"a=b&" * 5_000,
        b"/" + b"x" * 70_000,
        b"/telemetry/",
        b"/api/login",
        b"/metrics",
        b"",
    ),
)
HOSTILE_NUMBERS = ("NaN", "-1", "-1.5", "0", "1e999", "-1e999", "1e308", "5e-324", "9223372036854775808", "1e18")
NUMBER = re.compile(rb"(?<=[\[:,])-?\d[\d.eE+-]*")
WORD = re.compile(rb"[A-Za-z0-9_.+-]+")
_HOLE = "\x7fhole\x7f"


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Return the data with a few bytes exchanged, cut, repeated or put in."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at, length = random.randrange(len(made) + 1), random.choice((1, 1, 2, 4, 8, 64))
        kind = random.randrange(6)
        if kind == 0:
            made[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1 and at < len(made):
            made[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            del made[at : at + length]
        elif kind == 3:
            made[at:at] = made[at : at + length] * random.choice((1, 2, 50))
        elif kind == 4:
            number = random.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 255, 65_535))
            made[at : at + 8] = number.to_bytes(8, "little", signed=True)
        else:
            del made[at:]
    return bytes(made)


def mutate_text(random: Random, data: bytes) -> bytes:
    """Return the text with words exchanged for hostile ones, lines exchanged or repeated, or bytes changed."""
    kind = random.randrange(5)
    if kind == 0:
        return mutate_bytes(random, data)
    if kind == 1:
        lines = data.splitlines(keepends=True)
        for _ in range(random.choice((1, 2))):
            if lines:
                at = random.randrange(len(lines))
                lines[at : at + random.randrange(2)] = [random.choice(lines)] * random.choice((0, 1, 2))
        return b"".join(lines)
    for _ in range(random.choice((1, 1, 2))):
        words = list(WORD.finditer(data))
        if words:
            word, instead = random.choice(words), random.choice(HOSTILE_TEXT).encode("utf-8", "surrogatepass")
            data = data[: word.start()] + instead + data[word.end() :]
    return data


def mutate_json(random: Random, data: bytes) -> bytes:
    """Return the JSON with values exchanged for hostile ones, fields removed, put in or repeated, or bytes changed."""
    if random.randrange(6) == 0:
        return mutate_bytes(random, data)
    value: Any = json.loads(data)
    tokens: list[str] = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _change_value(random, value, tokens)
    text = json.dumps(value)
    for token in tokens:
        text = text.replace(json.dumps(_HOLE), token, 1)
    return text.encode("utf-8")


def _change_value(random: Random, value: Any, tokens: list[str]) -> Any:
    """Return the value with one change; a hole is left for each token of ``HOSTILE_JSON``."""
    nested = isinstance(value, (dict, list)) and len(value) > 0
    if not nested or random.randrange(12) == 0:
        tokens.append(random.choice(HOSTILE_JSON))
        return _HOLE
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = random.choice(keys)
    kind = random.randrange(10)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, dict):
        value[random.choice(("", "x", "\x1b[31m", "../x", "__class__", "nan", "1e999", "y" * 3_000))] = value[key]
    elif kind == 1:
        value.insert(key, value[key])
    elif kind == 2:
        value[key] = value[random.choice(keys)]
    else:
        value[key] = _change_value(random, value[key], tokens)
    return value


def mutate_numbers(random: Random, data: bytes) -> bytes:
    """Return the JSON with one or two of its numbers exchanged, each as likely as any other however deep it is."""
    if random.randrange(4) == 0:
        return mutate_json(random, data)
    for _ in range(random.choice((1, 1, 2))):
        numbers = list(NUMBER.finditer(data))
        number, instead = random.choice(numbers), random.choice(HOSTILE_NUMBERS).encode()
        data = data[: number.start()] + instead + data[number.end() :]
    return data


def mutate_json_lines(random: Random, data: bytes) -> bytes:
    """Return JSON lines of which one is hostile, is missing or stands elsewhere."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    if random.randrange(4):
        lines[at] = mutate_json(random, lines[at])
    else:
        lines.insert(random.randrange(len(lines) + 1), lines.pop(at) if random.randrange(2) else lines[at])
    return b"\n".join(lines) + b"\n"


def mutate_frames(random: Random, data: bytes) -> bytes:
    """Return a write-ahead file with the payload of one frame changed, its checksum being right again."""
    if random.randrange(4) == 0:
        return mutate_bytes(random, data)
    frames, at = [], 0
    while at < len(data):
        _, length, _ = wal.HEAD.unpack_from(data, at)
        frames.append(data[at + wal.HEAD.size : at + wal.HEAD.size + length])
        at += wal.HEAD.size + length
    place = random.randrange(len(frames))
    changed = bytearray(frames[place])
    for _ in range(random.choice((1, 1, 2, 8))):  # of the same length: Arrow's alignment stays
        spot = random.randrange(len(changed))
        width = random.choice((1, 1, 4, 8))
        changed[spot : spot + width] = random.choice((b"\0", b"\xff", b"\x7f", b"\x01", b"\x80")) * width
    frames[place] = bytes(changed[: len(frames[place])])
    if random.randrange(6) == 0:
        random.shuffle(frames)
    return b"".join(make_frame(frame) for frame in frames)


def mutate_request(random: Random, data: bytes) -> bytes:
    """Return an HTTP request with another method, path, header or body, or several requests on one connection."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    kind = random.randrange(6)
    if kind == 0:
        return mutate_bytes(random, data)
    if kind == 1:
        return data * random.choice((1, 2, 30)) + mutate_bytes(random, data)
    if kind == 2:
        return head + b"\r\n\r\n" + mutate_json(random, body) if body else mutate_text(random, data)
    method, path, *version = lines[0].split(b" ")
    if kind == 3:
        path = random.choice(HOSTILE_PATHS)
    elif kind == 4:
        method = random.choice(
            (b"", b"POST", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"G\xffT", b"X" * 5_000)
        )
        version = [random.choice((b"HTTP/1.0", b"HTTP/9.9", b"HTTP/1.1 x", b"", b"HTTP/2.0"))]
    else:
        lines.insert(random.randrange(1, len(lines) + 1), random.choice(HOSTILE_HEADERS))
    lines[0] = b" ".join((method, path, *version))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def mutate_parquet(random: Random, data: bytes) -> bytes:
    """Return a Parquet file with changed bytes, with a changed footer whose length is right, or from elsewhere."""
    kind = random.randrange(8)
    if kind < 3:
        return mutate_bytes(random, data)
    if kind == 3:
        return _make_foreign_parquet(random, data)
    length = int.from_bytes(data[-8:-4], "little")
    footer = bytearray(data[-8 - length : -8])
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        footer[random.randrange(length)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return data[: -8 - length] + bytes(footer) + data[-8:]


def _make_foreign_parquet(random: Random, data: bytes) -> bytes:
    """Return the rows with a column of another type, name or number, as another program could have written them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(io.BytesIO(data))
    count, at = rows.num_rows, random.randrange(rows.num_columns)
    instead = random.choice(
        (
            pa.array([[[1]] * 3] * count, pa.list_(pa.list_(pa.int8()))),
            pa.array([{"a": {"b": b"\xff"}}] * count),
            pa.array([2**63 - 1] * count, pa.timestamp("ns")),
            pa.array([None] * count, pa.null()),
            pa.array([b"\xff\xfe"] * count, pa.binary()),
            pa.array([10**37] * count, pa.decimal128(38, 0)),
            pa.array(["x" * 100_000] * count, pa.large_string()),
            pa.array([float("nan")] * count, pa.float16()),
            pa.array([True] * count),
        )
    )
    name = random.choice((rows.column_names[at], "", "x" * 5_000, random.choice(rows.column_names)))
    changed = rows.set_column(at, name, instead) if random.randrange(4) else rows.remove_column(at)
    file = io.BytesIO()
    pq.write_table(changed, file, compression=random.choice(("none", "gzip", "brotli", "lz4")))
    return file.getvalue()


def make_frame(payload: bytes) -> bytes:
    """Return a frame with a right checksum around any payload."""
    crc = zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
    return wal.HEAD.pack(wal.MARK, len(payload), crc) + payload


def mutate_tensors(random: Random, data: bytes) -> bytes:
    """Return a safetensors file with a changed header, whose length is right again, or with changed bytes."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    kind = random.randrange(4)
    if kind == 0:
        return mutate_bytes(random, data)
    fields = json.loads(header)
    if kind == 1 or "__metadata__" not in fields:
        changed = mutate_json(random, header)
    else:
        about = fields["__metadata__"]
        name = random.choice(list(about))
        mutate = mutate_json if about[name][:1] in {"{", "["} else mutate_text
        about[name] = mutate(random, about[name].encode()).decode("utf-8", "replace")
        changed = json.dumps(fields).encode()
    return len(changed).to_bytes(8, "little") + changed + data[8 + length :]
