"""The process of a connector: its output line by line, its log, and how it ended.

Its output is read from a bounded pipe: a connector that is faster than the pipeline waits. What it
writes to its standard error is logged with secrets masked, and so is what it prints between its
messages. If columns have rules, nothing of that is logged: it may contain values of records.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final, cast

import structlog

from chronolake.errors import MissingRequirementError, SourceError
from chronolake.masking import HIDDEN
from chronolake.termination import run_at_termination

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.masking import Secrets

log = structlog.get_logger(__name__)

#: Environment variables that a connector gets. Others may be secrets of other connectors, or change
#: which modules its Python imports.
_INHERITED: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
)
#: The same for names in lower case, and for the beginnings of names.
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
_LOCALE: Final = "LC_"
_READ_BYTES: Final = 2**20
#: A line is kept in memory as a whole.
_MOST_LINE_BYTES: Final = 256 * 2**20
#: Seconds that a connector has to end after it was asked to.
_END_SECONDS: Final = 10.0
#: The same if SIGTERM ends this process, which a service manager may kill soon.
_TERMINATION_SECONDS: Final = 3.0
_LINES_SHOWN: Final = 5
_SHOWN_CHARACTERS: Final = 400


def _inherited_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.lower() in _PROXIES or name.startswith(_LOCALE)
    }


class ConnectorProcess:
    """A running connector.

    Attributes:
        pipeline: the pipeline's name, for logs.
        name: the connector's name, for logs and errors.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pipeline: str,
        folder: Path,
        secrets: Secrets,
        silent_seconds: float,
        variables: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        """Start a connector.

        Args:
            command: the program and its arguments.
            pipeline: the pipeline's name, for logs.
            folder: its working folder.
            secrets: what logs and errors must not contain.
            silent_seconds: how long it may report nothing.
            variables: environment variables. Of those of this process, it gets only some.
            name: the connector's name; None: that of the program.

        Raises:
            MissingRequirementError: the program does not exist, or cannot be run.
        """
        self.pipeline = pipeline
        self.name = name or os.path.basename(command[0])  # noqa: PTH119 - a command, not a path
        self._secrets = secrets
        self._silent_seconds = silent_seconds
        self._last: deque[str] = deque(maxlen=_LINES_SHOWN)
        self._hidden = 0
        self._has_reported = False
        self._at_termination = ExitStack()
        self._at_termination.enter_context(run_at_termination(self._terminate))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own program
                command,
                cwd=folder,
                env={**_inherited_variables(), "PYTHONUNBUFFERED": "1", **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as failure:
            self._at_termination.close()
            raise MissingRequirementError(
                f"The connector {self.name} cannot be started: {failure.strerror}.",
                hint="Check source.command in chronolake.yml: the program, and its permissions.",
            ) from None
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._stderr = cast("IO[bytes]", self._process.stderr)
        self._errors = threading.Thread(target=self._log_errors, daemon=True)
        self._errors.start()

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of its output, and wait for its end.

        Raises:
            SourceError: it ended with an error, or reported nothing for too long.
        """
        try:
            yield from self._read_lines()
            code = self._wait()
        finally:
            self.end()
        if code:
            raise self._ended_error(code)

    def _read_lines(self) -> Iterator[bytes]:
        output = self._stdout.fileno()
        rest: list[bytes] = []
        size = 0
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if not selector.select(self._silent_seconds):
                    raise SourceError(
                        f"The connector {self.name} has reported nothing for "
                        f"{self._silent_seconds:,.0f} seconds, and was stopped.{self._shown()}",
                        hint="Run the sync again; it continues after the last state. If the "
                        "connector needs more time, set source.silent_seconds.",
                    )
                block = os.read(output, _READ_BYTES)
                if not block:
                    break
                self._has_reported = True
                first, *lines = block.split(b"\n")
                if not lines:
                    rest.append(first)
                    size += len(first)
                    if size > _MOST_LINE_BYTES:
                        raise SourceError(
                            f"The connector {self.name} wrote a line of more than "
                            f"{_MOST_LINE_BYTES >> 20} MiB.",
                            hint="Leave out the stream or the field that is so large.",
                        )
                    continue
                yield b"".join([*rest, first])
                yield from lines[:-1]
                rest, size = [lines[-1]], len(lines[-1])
        # A connector that was killed may have written half a line.
        if (last := b"".join(rest)) and not self._wait():
            yield last

    def _wait(self) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises:
            SourceError: it does not end, although it has closed its output.
        """
        try:
            return self._process.wait(self._silent_seconds)
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"The connector {self.name} has closed its output, but did not end within "
                f"{self._silent_seconds:,.0f} seconds, and was stopped.{self._shown()}",
                hint="Run the sync again; it continues after the last state. If the connector "
                "needs more time, set source.silent_seconds.",
            ) from None

    def print(self, text: str, *, level: str = "info") -> None:
        """Log a message of the connector."""
        if self._secrets.hides_messages:
            self._hidden += 1
            return
        shown = self._secrets.mask(text)
        if level in {"error", "fatal"}:
            self._last.append(shown)
        write = log.warning if level in {"error", "fatal", "warn", "warning"} else log.info
        write("connector_log", pipeline=self.pipeline, connector=self.name, line=shown)

    def _log_errors(self) -> None:
        for line in self._stderr:
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                if not self._secrets.hides_messages:
                    self._last.append(self._secrets.mask(text))
                self.print(text)

    def _ended_error(self, code: int) -> SourceError:
        how = (
            f"ended with the exit code {code}"
            if code > 0
            else f"was ended by {signal.Signals(-code).name}"
        )
        kept = (
            "What it reported before is kept, up to its last state."
            if self._has_reported
            else "It reported nothing. Check its configuration, and that it has its packages and "
            "a version of Python that it supports; those of a package are source.requirements and "
            "source.python."
        )
        return SourceError(
            f"The connector {self.name} {how}.{self._shown()}",
            hint=f"{kept} The log contains all of its messages.",
        )

    def _shown(self) -> str:
        if self._hidden:
            return f" Its messages: {HIDDEN}."
        if not self._last:
            return ""
        text = " ".join(self._last)
        cut = text if len(text) <= _SHOWN_CHARACTERS else f"…{text[-_SHOWN_CHARACTERS:]}"
        return f" Its last messages: {cut}"

    def end(self) -> None:
        """End the process with all of its children."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            limit = time.monotonic() + _END_SECONDS
            while self._process.poll() is None and time.monotonic() < limit:
                # It may wait until somebody reads its output.
                os.set_blocking(self._stdout.fileno(), False)
                try:
                    os.read(self._stdout.fileno(), _READ_BYTES)
                except BlockingIOError:
                    time.sleep(0.01)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._at_termination.close()
        self._errors.join()
        self._stdout.close()
        self._stderr.close()
        if self._hidden:
            log.info(
                "connector_log_hidden",
                pipeline=self.pipeline,
                connector=self.name,
                lines=self._hidden,
            )

    def _terminate(self) -> None:
        """End the process with all of its children, because this process ends."""
        # The code that it interrupts may hold the lock of the process.
        self._signal(signal.SIGTERM)
        limit = time.monotonic() + _TERMINATION_SECONDS
        while not self._has_ended() and time.monotonic() < limit:
            time.sleep(0.01)
        self._signal(signal.SIGKILL)

    def _has_ended(self) -> bool:
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is not None
        except ChildProcessError:
            return True

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
