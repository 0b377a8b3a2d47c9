"""Splitting a stream into whole records, and checking that the file follows the dialect."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.batch_files import csv_file
from support import batch_writer

texts = st.text(alphabet='ab",\n\r é', max_size=6)


def reader(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)


@given(
    st.lists(st.tuples(texts, texts), max_size=12),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_blocks_are_whole_records_and_nothing_is_lost(
    rows: list[tuple[str, str]], size: int, end: str, last_end: bool
) -> None:
    content = batch_writer.csv_bytes(["k", "v"], rows, end=end, last_end=last_end)
    blocks = list(csv_file.blocks(reader(content).read, size=size))
    assert b"".join(blocks) == content
    read = [
        tuple(row)
        for block in blocks
        for row in csv.reader(io.StringIO(block.decode(), newline=""), strict=True)
    ]
    assert read == [("k", "v"), *rows]
    assert all(csv_file.flaw(block, width=2) is None for block in blocks)


@pytest.mark.parametrize(
    ("block", "before", "word"),
    [
        (b'a,b\nc"d,e\n', 1, "not quoted"),
        (b'a,b\nc,d"e"\n', 1, "not quoted"),
        (b'a,b\n"c"d,e\n', 1, "closing quote"),
        (b'a,b\n"c" ,e\n', 1, "closing quote"),
        (b'a,b\n"x\ny",z\n c,"d', 2, "not closed"),
        (b"a,b\nc\rd,e\n", 1, "carriage return"),
        (b"a,b\nc,e\r", 1, "carriage return"),
        (b'a,b\n"c\n\n",d\n\ne,f\n', 2, "empty"),
        (b"a,b\r\n\r\nc,d\r\n", 1, "empty"),
        (b"\na,b\n", 0, "empty"),
    ],
)
def test_a_flaw_is_found_with_its_record(block: bytes, before: int, word: str) -> None:
    flaw = csv_file.flaw(block, width=2)
    assert flaw is not None
    assert flaw[0] == before
    assert word in flaw[1]


@pytest.mark.parametrize(
    "block",
    [b"", b"a,b", b'"",""\n', b'"a""b",c\r\n', b'"\r",x\n', b'"""",""""\n', b'"\n\n\r\n",x\n'],
)
def test_the_dialect_is_accepted(block: bytes) -> None:
    assert csv_file.flaw(block, width=2) is None


def test_an_empty_line_is_a_record_of_one_column() -> None:
    assert csv_file.flaw(b"a\n\nb\n", width=1) is None


def test_a_record_longer_than_the_limit_is_an_error() -> None:
    content = b'id\n1\n"' + b"x" * 5000 + b'"\n2\n'
    assert list(csv_file.blocks(reader(content).read, size=100, limit=6000))
    with pytest.raises(csv_file.OverlongRecordError):
        list(csv_file.blocks(reader(content).read, size=100, limit=1000))


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b"a,b\n", ["a", "b"]),
        (b"a,b\r\n", ["a", "b"]),
        (b'"a,1","b ""q"""', ["a,1", 'b "q"']),
        (b'"line\nbreak",x\n', ["line\nbreak", "x"]),
        (b"\xef\xbb\xbfa,b\n", ["a", "b"]),
        ("größe,😀\n".encode(), ["größe", "😀"]),
        (b"\n", [""]),
    ],
)
def test_header_names(header: bytes, names: list[str]) -> None:
    block = header + b"1,2\n" if header.endswith(b"\n") else header
    assert csv_file.header_end(block) == len(header)
    assert csv_file.header_names(header) == names


@pytest.mark.parametrize("text", [b"a0x1", b"0X", b"1,0x10\n"])
def test_hexadecimal_is_noticed(text: bytes) -> None:
    assert csv_file.has_hexadecimal(text)


@pytest.mark.parametrize("text", [b"", b"x0", b"x10x".replace(b"0x", b"0-x"), b"00,xX"])
def test_other_text_is_not_hexadecimal(text: bytes) -> None:
    assert not csv_file.has_hexadecimal(text)
