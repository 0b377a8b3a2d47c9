"""The engine's process: it starts Java, runs each command in a fork, and reports exit codes.

The process has one thread and never uses Spark itself, so that its forks begin without locks or
connections of others. Only its user can connect to its socket.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import selectors
import signal
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from chronolake import session
from chronolake.engine import client, command, messages
from chronolake.engine.java import EngineJava
from chronolake.errors import ChronolakeError
from chronolake.lake import spark_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chronolake.config import LakeConfig

log = structlog.get_logger(__name__)

#: Modules that commands import when they need them.
_PRELOADED: Final = (
    "chronolake.cli.progress",
    "chronolake.inspect.render",
    "chronolake.pipeline.rebuild",
    "chronolake.pipeline.streams",
    "chronolake.pipeline.sync",
    "chronolake.query",
)
#: Modules of extras.
_OPTIONAL: Final = ("chronolake.source.declarative.source", "chronolake.source.postgres.database")
_BACKLOG: Final = 16
_CHECK_SECONDS: Final = 1.0
#: The longest time for the message of a client, which sends it at once.
_RECEIVE_SECONDS: Final = 5.0
#: The JVM is replaced when it occupies this much more than its heap may.
_EXCESS_BYTES: Final = 3 * 2**30
#: A JVM that ends more often in a row, without a command in between, does not run here.
_MOST_DEATHS: Final = 3
#: Each command leaves some objects in the JVM if it is killed.
_MOST_COMMANDS: Final = 1_000


@dataclass
class _Fork:
    """A fork that runs.

    Attributes:
        connection: the client that waits for its exit code; None for a fork of the engine's own.
        code: the exit code to send when it has ended; None for its own.
    """

    connection: socket.socket | None = None
    code: int | None = None


@dataclass
class Engine:
    """An engine of one lake.

    Attributes:
        lake: the lake's folder.
        project: the project's file, whose commands also find the engine; or None.
        config: returns the current configuration of the lake.
        main: runs the program with its arguments, and raises SystemExit with its code.
        idle_seconds: the engine ends after this time without a command; None for never.
        warm_up: runs in a fork after each start of Java, so that commands find it ready.
    """

    lake: Path
    project: Path | None
    config: Callable[[], LakeConfig]
    main: Callable[[Sequence[str]], object]
    idle_seconds: float | None
    warm_up: Callable[[LakeConfig], None] | None = None
    _java: EngineJava | None = None
    _forks: dict[int, _Fork] = field(default_factory=dict)
    _commands: int = 0
    _used_at: float = field(default_factory=time.monotonic)
    _is_ending: bool = False
    _is_checked: bool = False
    _deaths: int = 0
    _sockets: tuple[socket.socket, ...] = ()
    _stamp: str = field(default_factory=client.code_stamp)

    def run(self) -> bool:
        """Run commands until the engine was idle for too long, or gets SIGTERM, SIGINT or `stop`.

        Running commands are finished first.

        Returns:
            False if the lake has another engine.
        """
        address = client.address_of(self.lake)
        with address.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            address.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
                umask = os.umask(0o177)
                listening.bind(str(address))
                os.umask(umask)
                listening.listen(_BACKLOG)
                links = self._link(address)
                try:
                    self._serve(listening)
                finally:
                    for file in (*links, address):
                        file.unlink(missing_ok=True)
                    if self._java is not None:
                        self._java.stop()
        return True

    def _link(self, address: Path) -> list[Path]:
        """Let clients find the engine by the project's file, too."""
        if self.project is None:
            return []
        link = client.address_of(self.project)
        link.unlink(missing_ok=True)
        link.symlink_to(address.name)
        return [link]

    def _serve(self, listening: socket.socket) -> None:
        woken, waker = socket.socketpair()
        self._sockets = (listening, woken, waker)
        with woken, waker, selectors.DefaultSelector() as selector:
            woken.setblocking(False)
            waker.setblocking(False)
            signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self._end())
            selector.register(listening, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            preload()
            self._ensure_java()
            try:
                self._run_forks(listening, selector, woken)
            finally:
                signal.set_wakeup_fd(-1)

    def _run_forks(
        self, listening: socket.socket, selector: selectors.BaseSelector, woken: socket.socket
    ) -> None:
        while not self._is_ending or self._forks:
            for key, _ in selector.select(_CHECK_SECONDS):
                if key.fileobj is woken:
                    with suppress(BlockingIOError):
                        woken.recv(4096)
                elif key.fileobj is listening:
                    self._accept(listening, selector)
                else:
                    self._end_of_client(key.fileobj, selector)
            self._reap(selector)
            self._check()

    def _end(self) -> None:
        self._is_ending = True

    def _check(self) -> None:
        """End the engine if it was idle for too long; otherwise see to its JVM."""
        if self._forks:
            self._used_at = time.monotonic()
            return
        idle = time.monotonic() - self._used_at
        if self.idle_seconds is not None and idle > self.idle_seconds:
            self._is_ending = True
        has_java = self._java is not None and self._java.is_running
        if not self._is_ending and not (self._is_checked and has_java):
            # The configuration is read again after a command, not every second.
            self._is_checked = True
            self._ensure_java()

    def _ensure_java(self) -> None:
        """Start a JVM, or replace one that has ended or grown, or that has other settings.

        An invalid configuration changes nothing: the next command reports it.
        """
        try:
            config = self.config()
            home = session.java_home()
            wanted = session.settings_of_java(config.spark.master, spark_conf(config), home)
        except ChronolakeError as failure:
            log.warning("engine_cannot_start_java", error=failure.message)
            return
        java = self._java
        if java is not None:
            limit = wanted.heap_bytes + _EXCESS_BYTES
            is_current = java.settings.fingerprint == wanted.fingerprint
            is_small = java.resident_bytes < limit and self._commands < _MOST_COMMANDS
            if java.is_running and is_current and is_small:
                return
            log.info("engine_restarts_java", memory_bytes=java.resident_bytes)
            self._deaths = 0 if java.is_running else self._deaths + 1
            if self._deaths > _MOST_DEATHS:
                log.error("engine_ends", reason="Java ended several times in a row")
                self._is_ending = True
                return
            java.stop()
        self._commands = 0
        self._java = started = EngineJava.start(wanted, home, is_private=not config.shared)
        if self.warm_up is not None:
            self._fork(partial(_warm_up, self.warm_up, started, config), _Fork())

    def _fork(self, run: Callable[[], object], fork: _Fork) -> int:
        """Run a function in a fork, which ends with it; return the fork's process id."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                command.prepare_fork()
                self._close_sockets()
                run()
                code = 0
            finally:
                command.end(code)
        self._forks[pid] = fork
        return pid

    def _close_sockets(self) -> None:
        """Close the engine's sockets in a fork, so that clients notice the engine's end.

        A fork keeps the JVM running, and the lock of the lake: there is no other engine until it
        has ended.
        """
        for fork in self._forks.values():
            if fork.connection is not None:
                fork.connection.close()
        for other in self._sockets:
            other.close()

    def _accept(self, listening: socket.socket, selector: selectors.BaseSelector) -> None:
        connection, _ = listening.accept()
        try:
            _, user, _ = struct.unpack(
                "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if user != os.getuid():
                connection.close()
                return
            connection.settimeout(_RECEIVE_SECONDS)
            request, files = messages.receive(connection)
            try:
                if request is None:
                    connection.close()
                elif "control" in request:
                    self._control(connection, request["control"])
                else:
                    self._start_command(connection, request, files, selector)
            finally:
                for file in files:
                    os.close(file)
        except (OSError, ValueError, LookupError):
            # The client has ended, or another program has connected.
            with suppress(KeyError, ValueError):
                selector.unregister(connection)
            connection.close()

    def _start_command(
        self,
        connection: socket.socket,
        request: dict[str, Any],
        files: Sequence[int],
        selector: selectors.BaseSelector,
    ) -> None:
        """Run a command in a fork, unless the engine ends or has imported other code."""
        if request["stamp"] != self._stamp:
            self._is_ending = True
        if self._is_ending:
            messages.send(connection, {"refused": True})
            connection.close()
            return
        run = partial(command.run, request, files, self._java, self.main)
        pid = self._fork(run, _Fork(connection))
        self._commands += 1
        self._deaths = 0
        self._is_checked = False
        selector.register(connection, selectors.EVENT_READ)
        messages.send(connection, {"pid": pid})

    def _control(self, connection: socket.socket, word: str) -> None:
        with connection:
            if word == "stop":
                self._is_ending = True
            java = self._java
            state = {
                "pid": os.getpid(),
                "java_pid": java.process.pid if java is not None and java.is_running else None,
                "memory_bytes": 0 if java is None else java.resident_bytes,
                "commands": sum(fork.connection is not None for fork in self._forks.values()),
                "idle_seconds": round(time.monotonic() - self._used_at, 3),
                "idle_limit_seconds": self.idle_seconds,
            }
            messages.send(connection, state)

    def _end_of_client(self, connection: Any, selector: selectors.BaseSelector) -> None:
        """End the command of a client that has ended, as the end of its terminal would."""
        with suppress(OSError):
            if connection.recv(1):
                return
        selector.unregister(connection)
        for pid, fork in self._forks.items():
            if fork.connection is connection:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)

    def _reap(self, selector: selectors.BaseSelector) -> None:
        for pid, fork in list(self._forks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._forks[pid]
            code = os.waitstatus_to_exitcode(status)
            if fork.code is not None:
                code = fork.code
            elif self._java is not None and (tags := self._java.tags_of(pid)) and code != 0:
                # They may still run. The client waits until they are cancelled.
                fork.code = code
                self._fork(partial(self._java.cancel_jobs, tags), fork)
                continue
            if fork.connection is not None:
                with suppress(KeyError, ValueError):
                    selector.unregister(fork.connection)
                with fork.connection, suppress(OSError):
                    messages.send(fork.connection, {"code": code if code >= 0 else 128 - code})


def _warm_up(warm_up: Callable[[LakeConfig], None], java: EngineJava, config: LakeConfig) -> None:
    java.share()
    warm_up(config)


def preload() -> None:
    """Import what commands use, so that forks need not."""
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in _OPTIONAL:
        with suppress(ImportError):
            importlib.import_module(name)
