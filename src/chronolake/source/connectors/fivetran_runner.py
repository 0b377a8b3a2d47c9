"""Runs a project of the Fivetran Connector SDK, in the environment of that project.

`python fivetran_runner.py FOLDER schema|update --config FILE [--state FILE]`

The operations of the SDK are replaced by ones that write a JSON message to the standard output.
What the project prints goes to the standard error. This module imports nothing of Chronolake: its
package is not installed there.
"""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

#: Bytes of messages that are written together.
_BUFFER = 2**20


class Messages:
    """Messages on the standard output; thread-safe."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "wb", buffering=_BUFFER)
        self._lock = threading.Lock()
        # What the project prints must not be between the messages.
        os.dup2(2, 1)

    def write(self, kind: str, **content: Any) -> None:
        """Write a message."""
        line = json.dumps({"type": kind, **content}, default=_text_of) + "\n"
        with self._lock:
            self._output.write(line.encode())

    def flush(self) -> None:
        """Pass on everything that was written."""
        with self._lock:
            self._output.flush()


def _text_of(value: Any) -> Any:
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return list(value) if isinstance(value, set | frozenset) else str(value)


class Operations:
    """The operations of the SDK, with the parameters that it documents."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def upsert(self, table: str, data: Any, *, schema: str | None = None, **_: Any) -> None:
        """Insert a row, or replace the one with its key."""
        self._messages.write("UPSERT", table=table, schema=schema, data=data)

    def update(self, table: str, modified: Any, *, schema: str | None = None, **_: Any) -> None:
        """Replace some values of a row."""
        self._messages.write("UPDATE", table=table, schema=schema, data=modified)

    def delete(self, table: str, keys: Any, *, schema: str | None = None) -> None:
        """Delete a row."""
        self._messages.write("DELETE", table=table, schema=schema, data=keys)

    def truncate(self, table: str, *, schema: str | None = None) -> None:
        """Delete all rows of a table."""
        self._messages.write("TRUNCATE", table=table, schema=schema)

    def checkpoint(self, state: Any) -> None:
        """Report the state after all operations so far."""
        self._messages.write("STATE", value=state)
        self._messages.flush()

    def warning(self, message: str) -> None:
        """Report a warning."""
        self._messages.write("WARNING", message=message)

    def error(self, message: str, trace: str | None = None) -> None:
        """Report an error, which ends the sync."""
        self._messages.write("ERROR", message=message, trace=trace)


def main() -> None:
    """Run a command of the project."""
    folder, command, *words = sys.argv[1:]
    files = {
        name: json.loads(Path(path).read_bytes())
        for name, path in zip(words[::2], words[1::2], strict=True)
    }
    messages = Messages()
    sys.path.insert(0, folder)
    os.chdir(folder)
    sdk = importlib.import_module("fivetran_connector_sdk")
    # Without a level, which the SDK's own commands set, each message to its log would fail.
    sdk.Logging.LOG_LEVEL = sdk.Logging.Level.INFO
    replaced = sdk.Operations
    own = Operations(messages)
    for name in ("upsert", "update", "delete", "truncate", "checkpoint", "warning", "error"):
        setattr(replaced, name, staticmethod(getattr(own, name)))
    module = importlib.import_module("connector")
    connector = getattr(module, "connector", None)
    configuration = files.get("--config", {})
    if command == "schema":
        method = getattr(connector, "schema_method", None) or getattr(module, "schema", None)
        messages.write("SCHEMA", tables=method(configuration) if method else [])
    else:
        method = getattr(connector, "update_method", None) or module.update
        made = method(configuration, files.get("--state", {}))
        # Projects for earlier versions of the SDK are generators.
        for _ in made if hasattr(made, "__next__") else ():
            continue
    messages.flush()


if __name__ == "__main__":
    main()
