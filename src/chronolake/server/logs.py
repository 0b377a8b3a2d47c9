"""The server's log: one JSON object per line on standard output, as the Partner SDK requires.

```
{"level": "INFO", "message": "batch_written table=shop.users batch=5c1e",
 "message-origin": "sdk_destination",
 "event": "batch_written", "table": "shop.users", "batch": "5c1e", "time": "…"}
```

The SDK's collector reads `level`, `message` and `message-origin`, so the message alone contains
everything. The other keys are for other collectors.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import orjson
import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

ORIGIN: Final = "sdk_destination"
_LEVELS: Final = {
    "debug": "INFO",
    "info": "INFO",
    "warning": "WARNING",
    "error": "SEVERE",
    "critical": "SEVERE",
}
_MESSAGE_KEYS: Final = ("level", "message", "message-origin")


def format_line(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """Format a structlog event as a line for the SDK (the last of structlog's processors)."""
    name = str(event.pop("event", ""))
    time = event.pop("timestamp", None)
    fields = {key: _to_json_type(value) for key, value in event.items() if key not in _MESSAGE_KEYS}
    message = " ".join(
        [name, *(f"{key}={_quote_if_needed(value)}" for key, value in fields.items())]
    )
    return _serialize(
        {
            "level": _LEVELS.get(str(event.get("level", method)), "INFO"),
            "message": message,
            "message-origin": ORIGIN,
            "event": name,
            **fields,
            **({"time": time} if time else {}),
        }
    )


def _serialize(record: dict[str, Any]) -> str:
    try:
        return orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # A lone surrogate (a file name that is not UTF-8) is not valid JSON, and is escaped.
        escaped = {
            key: value.encode(errors="backslashreplace").decode() if type(value) is str else value
            for key, value in record.items()
        }
        return orjson.dumps(escaped, option=orjson.OPT_NON_STR_KEYS, default=str).decode()


def _to_json_type(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(key): _to_json_type(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_type(inner) for inner in value]
    return str(value)


def _quote_if_needed(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return repr(text) if isinstance(value, str) and (not text or " " in text) else text


def configure(stream: TextIO) -> None:
    """Send every log event of this process to `stream`, one JSON line each.

    Events of the standard library's `logging` (of gRPC and py4j) are written in the same way, from
    WARNING on.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, format_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _remove_traceback],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, format_line],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


def _remove_traceback(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    # The text of an exception may contain cell values; its type is enough here.
    failure = event.pop("exc_info", None)
    if isinstance(failure, tuple) and failure[0] is not None:
        event["error"] = failure[0].__name__
    record = event.get("_record")
    if record is not None:
        record.exc_info = record.exc_text = None
    return event


def reserve_standard_output() -> TextIO:
    """Reserve standard output for the log.

    From then on, anything else that is written to file descriptor 1, by this process, the JVM or
    Python workers, goes to standard error.

    Returns:
        A line-buffered stream to the original standard output.
    """
    sys.stdout.flush()
    log = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)
    return log
