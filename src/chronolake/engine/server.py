"""The engine's process: it starts Java, runs each command in a fork, and reports exit codes.

The process has one thread and never uses Spark itself, so that its forks begin without locks or
connections of others. Only its user can connect to its socket.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
import struct
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from chronolake import permissions
from chronolake.engine import client, command, lock, messages
from chronolake.engine.java import JavaKeeper
from chronolake.engine.tasks import Tasks, end_with_engine
from chronolake.errors import ChronolakeError
from chronolake.storage import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from chronolake.config import LakeConfig
    from chronolake.engine.java import EngineJava

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
#: Standard input, output and error, and the pipe that lets the command begin.
_COMMAND_FILES: Final = 4


@dataclass
class _Fork:
    """A fork that runs.

    Attributes:
        connection: the client that waits for its exit code; None for a fork of the engine's own.
        code: the exit code to send when it has ended; None for its own.
        task: the name of its task, or None.
        uses_java: whether it may use the JVM.
    """

    connection: socket.socket | None = None
    code: int | None = None
    task: str | None = None
    uses_java: bool = True


@dataclass
class Engine:
    """An engine of one lake.

    Attributes:
        lake: the lake's folder.
        project: the project's file, whose commands also find the engine; or None.
        config: returns the current configuration of the lake; called every second.
        main: runs the program with its arguments, and raises SystemExit with its code.
        idle_seconds: the engine ends after this time without a command; None for never.
        warm_up: runs in a fork after each start of Java, so that commands find it ready.
        tasks: tasks that run as long as the engine.
        grace_seconds: how long an engine that ends waits for commands and tasks; None for as long
            as they need.
    """

    lake: Path
    project: Path | None
    config: Callable[[], LakeConfig]
    main: Callable[[Sequence[str]], object]
    idle_seconds: float | None = None
    warm_up: Callable[[LakeConfig], None] | None = None
    tasks: Tasks = field(default_factory=lambda: Tasks(dict))
    grace_seconds: float | None = None
    #: Whether it ends, or has ended, because the configuration names another lake now.
    has_moved: bool = field(default=False, init=False)
    #: Whether it ends, or has ended, because Java cannot run here.
    has_failed: bool = field(default=False, init=False)
    _keeper: JavaKeeper = field(init=False)
    _forks: dict[int, _Fork] = field(default_factory=dict)
    _used_at: float = field(default_factory=time.monotonic)
    _ending_since: float | None = None
    _sockets: tuple[socket.socket, ...] = ()
    _stamp: str = field(default_factory=client.code_stamp)

    def __post_init__(self) -> None:
        """Start with no JVM."""
        self._keeper = JavaKeeper(self.config)

    def run(self) -> bool:
        """Run commands until the engine was idle for too long, or gets SIGTERM, SIGINT or `stop`.

        Running commands are finished first, and tasks get SIGTERM.

        Returns:
            False if the lake has another engine, or a command of one still runs.

        Raises:
            StorageError: the lake's folder cannot be written.
        """
        permissions.make_lake(self.config())
        address = client.address_of(self.lake)
        with ExitStack() as stack:
            holding = lock.hold(self.lake, address.parent, shared=self.config().shared)
            try:
                has_lock = stack.enter_context(holding)
            except OSError as failure:
                raise error_of(failure, self.lake) from failure
            if has_lock:
                self._listen(address)
        return has_lock

    def _listen(self, address: Path) -> None:
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
                self._keeper.stop()

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
            self._check()
            try:
                self._run_forks(listening, selector, woken)
            finally:
                signal.set_wakeup_fd(-1)

    def _run_forks(
        self, listening: socket.socket, selector: selectors.BaseSelector, woken: socket.socket
    ) -> None:
        while self._ending_since is None or self._forks:
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
        if self._ending_since is None:
            self._ending_since = time.monotonic()

    def _check(self) -> None:
        """End the engine if it should end; otherwise see to its JVM and its tasks."""
        now = time.monotonic()
        if self._forks:
            self._used_at = now
        elif self.idle_seconds is not None and now - self._used_at > self.idle_seconds:
            self._end()
        if self._ending_since is None and self._is_for_another_lake():
            log.info("engine_ends", reason="lake.path has changed")
            self.has_moved = True
            self._end()
        running = self._running_tasks()
        if self._ending_since is not None:
            self._signal(running.values(), signal.SIGTERM)
            if self.grace_seconds is not None and now - self._ending_since > self.grace_seconds:
                # Nothing is lost: every step of a run can be repeated.
                self._signal(self._forks, signal.SIGKILL)
        else:
            if self._may_replace_java():
                # Tasks end after their current run, and are restarted with the next JVM.
                users = [pid for pid in running.values() if self._forks[pid].uses_java]
                self._signal(users, signal.SIGTERM)
                if not users:
                    self._replace_java()
            unwanted = self.tasks.unwanted(running)
            self._signal([running[name] for name in unwanted], signal.SIGTERM)
            self._start_tasks(running, now)

    def _is_for_another_lake(self) -> bool:
        try:
            return self.config().path != self.lake
        except ChronolakeError:
            # Commands report it.
            return False

    def _start_tasks(self, running: Collection[str], now: float) -> None:
        java = self._keeper.java if self._keeper.is_running else None
        for name, task in self.tasks.due(running, now).items():
            if task.uses_java and (java is None or self._may_replace_java()):
                continue
            shared = java if task.uses_java else None
            run = partial(_run_task, name, os.getpid(), shared, task.run)
            self._fork(run, _Fork(task=name, uses_java=task.uses_java))
            self.tasks.note_started(name, now)

    def _running_tasks(self) -> dict[str, int]:
        """Return the process ids of the tasks that run, by name."""
        return {fork.task: pid for pid, fork in self._forks.items() if fork.task is not None}

    def _signal(self, pids: Collection[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _may_replace_java(self) -> bool:
        """Return whether another JVM should run, and no command uses the current one.

        Tasks go on as long as a command uses it: it may take hours.
        """
        if not self._keeper.is_replacement_due():
            return False
        has_command = any(fork.uses_java and fork.task is None for fork in self._forks.values())
        return not (has_command and self._keeper.is_running)

    def _replace_java(self) -> None:
        if self._keeper.is_hopeless:
            log.error("engine_ends", reason="Java ended several times in a row")
            self.has_failed = True
            self._end()
            return
        java = self._keeper.replace()
        if java is not None and self.warm_up is not None:
            self._fork(partial(_warm_up, self.warm_up, java, self.config()), _Fork())

    def _fork(self, run: Callable[[], object], fork: _Fork) -> int:
        """Run a function in a fork, which ends with it; return the fork's process id."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                command.prepare_fork()
                self._close_sockets()
                if not fork.uses_java:
                    self._keeper.leave()
                run()
                code = 0
            except BaseException:  # noqa: BLE001 - the last thing that the process does
                traceback.print_exc()
            finally:
                command.end(code)
        self._forks[pid] = fork
        return pid

    def _close_sockets(self) -> None:
        """Close the engine's sockets in a fork, so that clients notice the engine's end.

        A fork keeps the JVM running, and the lock of the lake: another engine can only start when
        it has ended.
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
            request, unexpected = messages.receive(connection)
            for file in unexpected:
                os.close(file)
            if request is None:
                connection.close()
            elif "control" in request:
                self._control(connection, request["control"])
            elif self._may_run(connection, request):
                _, files = messages.receive(connection)
                try:
                    self._start_command(connection, request, files, selector)
                finally:
                    for file in files:
                        os.close(file)
        except (OSError, ValueError, LookupError):
            # The client has ended, or another program has connected.
            with suppress(KeyError, ValueError):
                selector.unregister(connection)
            connection.close()

    def _may_run(self, connection: socket.socket, request: dict[str, Any]) -> bool:
        """Report to a client whether its command can run here: not in an engine that ends."""
        if request["stamp"] != self._stamp and not self.tasks.wanted():
            self._end()
        if self._ending_since is not None or request["stamp"] != self._stamp:
            messages.send(connection, {"refused": True})
            connection.close()
            return False
        messages.send(connection, {"ready": True})
        return True

    def _start_command(
        self,
        connection: socket.socket,
        request: dict[str, Any],
        files: Sequence[int],
        selector: selectors.BaseSelector,
    ) -> None:
        """Run a command in a fork."""
        if len(files) != _COMMAND_FILES:
            raise ValueError("a command needs its files")
        java = self._keeper.java if self._keeper.is_running else None
        run = partial(command.run, request, files, java, self.main)
        pid = self._fork(run, _Fork(connection, uses_java=java is not None))
        self._keeper.note_command()
        selector.register(connection, selectors.EVENT_READ)
        messages.send(connection, {"pid": pid})

    def _control(self, connection: socket.socket, word: str) -> None:
        with connection:
            if word == "stop":
                self._end()
            java = self._keeper.java
            state = {
                "pid": os.getpid(),
                "java_pid": java.process.pid if java is not None and java.is_running else None,
                "memory_bytes": 0 if java is None else java.resident_bytes,
                "commands": sum(fork.connection is not None for fork in self._forks.values()),
                "tasks": self.tasks.state(self._running_tasks()),
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
        pids = [pid for pid, fork in self._forks.items() if fork.connection is connection]
        self._signal(pids, signal.SIGHUP)

    def _reap(self, selector: selectors.BaseSelector) -> None:
        java = self._keeper.java
        for pid, fork in list(self._forks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._forks[pid]
            code = os.waitstatus_to_exitcode(status)
            if code < 0 and fork.uses_java:
                self._keeper.note_killed()
            if fork.code is not None:
                code = fork.code
            elif java is not None and (tags := java.tags_of(pid)) and code != 0:
                # Its jobs may still run. The client waits until they are cancelled.
                self._fork(partial(java.cancel_jobs, tags), replace(fork, code=code))
                continue
            if fork.task is not None:
                self._note_ended(fork.task, code)
            if fork.connection is not None:
                with suppress(KeyError, ValueError):
                    selector.unregister(fork.connection)
                with fork.connection, suppress(OSError):
                    messages.send(fork.connection, {"code": code if code >= 0 else 128 - code})

    def _note_ended(self, task: str, code: int) -> None:
        if self._ending_since is not None or code in {0, -signal.SIGTERM}:
            return
        pause = self.tasks.note_ended(task, time.monotonic())
        log.warning("task_ended", task=task, exit_code=code, restart_seconds=pause)


def _run_task(name: str, engine: int, java: EngineJava | None, run: Callable[[], object]) -> None:
    end_with_engine(engine)
    if java is not None:
        java.share()
    try:
        run()
    except ChronolakeError as failure:
        # The log is for machines, too: no traceback.
        log.error(  # noqa: TRY400
            "task_failed",
            task=name,
            error=type(failure).__name__,
            reason=failure.statement,
            hint=failure.hint,
        )
        command.end(1)
    except Exception as failure:  # noqa: BLE001 - the engine restarts the task
        # The message may contain values.
        frames = traceback.extract_tb(failure.__traceback__)
        log.error(  # noqa: TRY400
            "task_failed",
            task=name,
            error=type(failure).__name__,
            reason="an unexpected error",
            where=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
        )
        command.end(1)


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
