"""Reads streams as airbyte-cdk does. Runs inside the reference's own environment, not in ours.

Each line of input, `{manifest, config, stream, state}`, produces one line of output, `{records,
state, failure, waits, log}`, both JSON. Each read runs in its own child process, so that no cache,
token or thread of one can reach the next. Waits are recorded instead of slept.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

warnings.simplefilter("ignore")

import backoff._sync  # noqa: E402
from airbyte_cdk.models import (  # noqa: E402
    AirbyteStateMessageSerializer,
    AirbyteStream,
    ConfiguredAirbyteCatalog,
    ConfiguredAirbyteStream,
    DestinationSyncMode,
    SyncMode,
)
from airbyte_cdk.models import Type as Kind  # noqa: E402
from airbyte_cdk.sources.declarative import concurrent_declarative_source  # noqa: E402
from airbyte_cdk.sources.declarative.incremental.concurrent_partition_cursor import (  # noqa: E402
    ConcurrentPerPartitionCursor,
)
from airbyte_cdk.utils.traced_exception import AirbyteTracedException  # noqa: E402

#: The folder of the manifests, which contains their schemas.
FILES = Path(__file__).parents[2] / "compat" / "files"
#: Seconds after which a read counts as hanging.
PATIENCE = 30
#: Callers that really sleep: the framework between its own threads, and the rate limiter.
SLEEPERS = ("partition_enqueuer", "call_rate")


class Waits:
    """Replaces `time.sleep`: records the wait, and moves the clock instead."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._sleep = time.sleep
        self._own = threading.local()

    def sleep(self, seconds: float) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.endswith(SLEEPERS):
            self._sleep(seconds)
        elif seconds > 0:
            self.asked.append(round(float(seconds), 3))
            self._own.passed = self.passed + seconds

    @property
    def passed(self) -> float:
        return getattr(self._own, "passed", 0.0)

    def now(self) -> dt.datetime:
        """Return the time as the retries see it, including the waits that were skipped."""
        return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.passed)


class Heard(logging.Handler):
    """The log records of level warning or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def patched() -> Waits:
    waits = Waits()
    time.sleep = waits.sleep
    clock = ModuleType("datetime")
    clock.datetime = SimpleNamespace(now=waits.now)  # type: ignore[attr-defined]
    backoff._sync.datetime = clock  # type: ignore[attr-defined]
    return waits


def source_of(question: dict[str, Any]) -> tuple[Any, Any]:
    stream, state = question["stream"], question["state"]
    messages = []
    if state is not None:
        described = {"stream_descriptor": {"name": stream}, "stream_state": state}
        messages.append(AirbyteStateMessageSerializer.load({"type": "STREAM", "stream": described}))
    catalog = ConfiguredAirbyteCatalog(
        streams=[
            ConfiguredAirbyteStream(
                stream=AirbyteStream(
                    name=stream,
                    json_schema={},
                    supported_sync_modes=[SyncMode.full_refresh, SyncMode.incremental],
                ),
                sync_mode=SyncMode.incremental,
                destination_sync_mode=DestinationSyncMode.append,
            )
        ]
    )
    source = concurrent_declarative_source.ConcurrentDeclarativeSource(
        catalog=catalog,
        config=question["config"],
        state=messages,
        source_config=question["manifest"],
    )
    return source, (question["config"], catalog, messages)


def register(code: str) -> None:
    """Make the code beside a manifest available where the reference looks for it."""
    module = ModuleType("source_declarative_manifest.components")
    sys.modules["source_declarative_manifest"] = ModuleType("source_declarative_manifest")
    sys.modules[module.__name__] = module
    exec(compile(code, "components.py", "exec"), module.__dict__)  # noqa: S102 - a test's own


def reading(question: dict[str, Any]) -> dict[str, Any]:
    """Read a stream with the reference; return its records, last state and failure."""
    waits = patched()
    heard = Heard()
    logging.getLogger().handlers = [heard]
    logging.getLogger("airbyte").handlers = [heard]
    logging.getLogger("airbyte").propagate = False
    records: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    if limit := question.get("partition_limit"):
        ConcurrentPerPartitionCursor.SWITCH_TO_GLOBAL_LIMIT = limit
    if code := question.get("components"):
        register(code)
    try:
        source, (config, catalog, messages) = source_of(question)
        logger = logging.getLogger("airbyte")
        for message in source.read(logger, config, catalog, messages):
            if message.type == Kind.RECORD:
                records.append(message.record.data)
            elif message.type == Kind.STATE:
                dumped = AirbyteStateMessageSerializer.dump(message.state)
                states.append(dumped["stream"]["stream_state"])
            elif message.type == Kind.TRACE and message.trace.error is not None:
                error = message.trace.error
                failures.append({"kind": error.failure_type.value, "message": error.message})
    except AirbyteTracedException as error:
        failures.append({"kind": error.failure_type.value, "message": error.message})
    except Exception as error:  # noqa: BLE001 - any error is a result
        failures.append({"kind": type(error).__name__, "message": str(error)})
    return {
        "records": records,
        "state": states[-1] if states else None,
        "states": len(states),
        "failure": failures[0] if failures else None,
        "waits": waits.asked,
        "log": heard.lines,
    }


def answered(line: bytes) -> bytes:
    """Read in a child process; return its output."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # The reference prints messages while it reads; they do not belong to the result.
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        try:
            question = json.loads(line)
            answer = json.dumps(reading(question)).encode()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            answer = json.dumps({"broken": repr(error)}).encode()
        with os.fdopen(writer, "wb") as out:
            out.write(answer)
        os._exit(0)
    os.close(writer)
    parts: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    with os.fdopen(reader, "rb", buffering=0) as got:
        while True:
            ready, _, _ = select.select([got], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                parts = [json.dumps({"broken": f"no answer in {PATIENCE} s"}).encode()]
                break
            part = got.read(1 << 16)
            if not part:
                break
            parts.append(part)
    os.waitpid(child, 0)
    return b"".join(parts) or json.dumps({"broken": "died"}).encode()


def main() -> None:
    sys.path.insert(0, str(FILES))
    sys.stdout.write(json.dumps({"ready": str(Path(sys.executable))}) + "\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(answered(line) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
