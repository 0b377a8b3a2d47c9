"""Log lines have the SDK's format, whatever they are about."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from chronolake.server import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = structlog.get_config(), root.handlers, root.level
    text = io.StringIO()
    logs.configure(text)
    yield text
    structlog.configure(**before[0])
    root.handlers, root.level = before[1], before[2]


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_the_three_keys(stream: io.StringIO) -> None:
    log = structlog.get_logger("any")
    log.info("batch_written", table='odd "name"\nhere', batch="5c1e", rows=3, seconds=0.5)
    (line,) = lines(stream)
    assert line["level"] == "INFO"
    assert line["message-origin"] == "sdk_destination"
    assert line["message"].startswith("batch_written ")
    assert "batch=5c1e" in line["message"]
    assert line["table"] == 'odd "name"\nhere'
    assert line["rows"] == 3


@pytest.mark.parametrize(
    ("method", "level"),
    [
        ("info", "INFO"),
        ("warning", "WARNING"),
        ("error", "SEVERE"),
        ("critical", "SEVERE"),
        ("exception", "SEVERE"),
    ],
)
def test_only_the_sdk_s_three_levels_are_written(
    stream: io.StringIO, method: str, level: str
) -> None:
    log = structlog.get_logger("any")
    log.debug("not written")
    getattr(log, method)("something")
    (line,) = lines(stream)
    assert line["level"] == level


def test_a_field_cannot_replace_the_message_or_the_origin(stream: io.StringIO) -> None:
    structlog.get_logger("any").info("said", message="other", **{"message-origin": "x"})
    (line,) = lines(stream)
    assert line["message"] == "said"
    assert line["message-origin"] == "sdk_destination"


def test_text_that_is_not_unicode_is_written_escaped(stream: io.StringIO) -> None:
    structlog.get_logger("any").info("file_seen", file="bad \udcff name", numbers={1: (2, None)})
    (line,) = lines(stream)
    assert line["file"] == "bad \\udcff name"


def test_other_libraries_warnings_are_lines_too_without_their_exceptions_text(
    stream: io.StringIO,
) -> None:
    logging.getLogger("py4j").info("chatter")
    try:
        int("cell 4711")
    except ValueError:
        logging.getLogger("grpc._server").exception("Exception calling application")
    (line,) = lines(stream)
    assert line["level"] == "SEVERE"
    assert line["error"] == "ValueError"
    assert "4711" not in stream.getvalue()


def test_no_warning_is_raised_by_configuring_twice() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = structlog.get_config()
        logs.configure(io.StringIO())
        logs.configure(io.StringIO())
        structlog.configure(**before)
