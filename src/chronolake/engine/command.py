"""A command in a fork of the engine: it gets all that its caller's process has, and ends the fork.

The JVM and its Python workers got the environment of the engine's start. A command whose caller has
other variables that they read starts its own JVM instead.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import random
import signal
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

from chronolake.engine import java as engine_java

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chronolake.engine.java import EngineJava

#: Prefixes of the variables that Java, Spark, storage clients and Python workers read.
_READ_BY_JAVA: Final = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "HADOOP_",
    "HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "JAVA_",
    "JDK_",
    "KRB5",
    "LANG",
    "LC_",
    "LD_",
    "NO_PROXY",
    "PYSPARK_",
    "PYTHON",
    "REQUESTS_CA_BUNDLE",
    "SPARK_",
    "SSL_",
    "TMPDIR",
    "TZ",
    "USER",
    "_JAVA",
)


def is_for_java(environment: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether a JVM with an environment serves a command with another one.

    Args:
        environment: the command's variables.
        own: those of the JVM.
    """
    return _read_by_java(environment) == _read_by_java(own)


def _read_by_java(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text for name, text in environment.items() if name.upper().startswith(_READ_BY_JAVA)
    }


def run(
    request: Mapping[str, Any],
    files: Sequence[int],
    java: EngineJava | None,
    main: Callable[[Sequence[str]], object],
) -> NoReturn:
    """Run a command in this fork as if its caller had started it, and end the process.

    Args:
        request: the command's arguments, folder, environment and umask.
        files: the caller's standard input, output and error, and a pipe from which one byte is read
            before the command begins; it ends at once if its client has ended before.
        java: the engine's JVM; None to start another one if needed.
        main: runs the program with its arguments, and raises SystemExit with its code.
    """
    code = 1
    *standard, begin = files
    try:
        if not os.read(begin, 1):
            end(code)
        os.close(begin)
        for source, target in zip(standard, (0, 1, 2), strict=True):
            os.dup2(source, target)
            os.close(source)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own
        sys.stdout = _writer(1, errors="strict", by_line=os.isatty(1))
        sys.stderr = _writer(2, errors="backslashreplace", by_line=True)
        if java is not None and is_for_java(request["environment"], os.environ):
            java.share()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.umask(request["umask"])
        os.chdir(request["folder"])
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
        sys.argv = ["chronolake", *request["command"]]
        code = code_of(main, request["command"])
    except KeyboardInterrupt:
        # Before the command has begun, or after it.
        code = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - the last thing that the process does
        traceback.print_exc()
    finally:
        end(code)


def prepare_fork() -> None:
    """Give a fork the signal handlers and the random numbers of a new process.

    It leaves the terminal of `up`, whose Ctrl-C drains the engine instead of ending commands.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    random.seed()


def code_of(main: Callable[[Sequence[str]], object], words: Sequence[str]) -> int:
    """Return the exit code of the program, as Python would end the process with it."""
    try:
        main(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def end(code: int) -> NoReturn:
    """End this fork with an exit code, without what the engine would do at its end."""
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(Exception):
        engine_java.release()
    with suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001 - as at the end of any process
    os._exit(code)


def _writer(descriptor: int, *, errors: str, by_line: bool) -> io.TextIOWrapper:
    raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - the process's own
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=by_line)
