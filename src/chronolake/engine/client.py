"""The client of an engine: runs a command there, as if it ran here.

It decides in a few milliseconds whether there is an engine, before the command's own modules are
loaded. So it imports only the standard library and modules that do the same.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chronolake import env
from chronolake.engine import lock
from chronolake.engine.messages import receive, send
from chronolake.location import project_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The commands that use Spark.
COMMANDS: Final = ("sync", "publish", "resync", "rebuild", "query", "verify", "maintain", "mode")
#: The option that runs a command without an engine.
BYPASS: Final = "--no-engine"
_OFF: Final = "off"
_FILE: Final = "chronolake.yml"
_LAKE: Final = "--lake"
_PROJECT: Final = "--project"
_DEBUG: Final = "--debug"
_VARIABLES: Final = {_PROJECT: env.PROJECT, _LAKE: env.LAKE}
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PRIVATE: Final = 0o700
#: Seconds for the engine's first response, which takes milliseconds. A command runs here if its
#: engine does not respond, for example because it was stopped.
_TIMEOUT: Final = 10.0


def is_supported() -> bool:
    """Return whether engines run on this operating system: they need Linux."""
    return sys.platform == "linux"


def folder() -> Path:
    """Return the folder of the sockets of engines that start here; only the user may enter it.

    Raises:
        PermissionError: the folder exists and belongs to somebody else, or is open to others.
    """
    place = _folders()[0]
    with suppress(FileExistsError):
        place.mkdir(mode=_PRIVATE)
    if not _is_private(place):
        raise PermissionError(f"{place} must be a folder of this user alone")
    return place


def _folders() -> list[Path]:
    """Return the folders where the user's engines may listen; new ones use the first.

    Some of the user's processes have no XDG_RUNTIME_DIR, such as those of cron.
    """
    user = os.getuid()
    base = os.environ.get("XDG_RUNTIME_DIR")
    return [
        *([Path(base, "chronolake")] if base and Path(base).is_dir() else []),
        Path(tempfile.gettempdir(), f"chronolake-{user}"),
        Path(f"/run/user/{user}/chronolake"),
    ]


def _is_private(place: Path) -> bool:
    """Return whether a folder exists that only this user may enter."""
    try:
        found = place.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_own and not found.st_mode & 0o077


def address_of(place: Path) -> Path:
    """Return the path of the socket of a lake's folder, or of a project's file.

    An engine listens on the socket of its lake; that of its project is a link to it.

    Raises:
        PermissionError: as for `folder`.
    """
    return folder() / _socket_of(place)


def _socket_of(place: Path) -> str:
    return f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.sock"


def _addresses_of(place: Path) -> list[Path]:
    """Return the paths where the engine of a lake or project may listen."""
    holder = lock.holder_of(place)
    folders = [*_folders(), *([] if holder is None else [holder.sockets])]
    return [found / _socket_of(place) for found in folders if _is_private(found)]


def place_of(words: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """Return the lake's folder if a command names one, otherwise the project's file.

    Args:
        words: the command's arguments.
        environment: the environment variables.

    Returns:
        An absolute path (`project_file`); None if no folder has a chronolake.yml.
    """
    named = {option: environment.get(name) for option, name in _VARIABLES.items()}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in named:
            named[option] = value if equals else following
    if lake := named[_LAKE]:
        return Path(lake).expanduser().resolve()
    if project := named[_PROJECT]:
        file = Path(project).expanduser()
        return project_file(file / _FILE if file.is_dir() else file)
    here = Path.cwd()
    files = (place / _FILE for place in (here, *here.parents))
    return next((project_file(file) for file in files if file.is_file()), None)


def may_use_engine(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command may run in an engine."""
    command = next((word for word in words if word != _DEBUG), "")
    is_off = BYPASS in words or environment.get(env.ENGINE) == _OFF
    return is_supported() and command in COMMANDS and not is_off


def code_stamp() -> str:
    """Return a text that changes with the installation of Chronolake and with its source files."""
    newest = 0
    for root, _, names in os.walk(Path(__file__).parent.parent):
        for name in names:
            if name.endswith(".py"):
                newest = max(newest, os.stat(os.path.join(root, name)).st_mtime_ns)  # noqa: PTH116, PTH118 - fast
    return f"{sys.prefix} {__file__} {newest}"


def delegate(words: Sequence[str]) -> int | None:
    """Run a command in the engine of its lake or project.

    Args:
        words: the command's arguments.

    Returns:
        Its exit code; None if it must run here: it uses no Spark, `--no-engine` is among its
        arguments, or an engine of this installation does not run.
    """
    if not may_use_engine(words, os.environ):
        return None
    try:
        with _connect_to_one(_engine_of(words)) as connection:
            return _run(connection, words)
    except KeyboardInterrupt:
        # The command has not begun.
        return 128 + signal.SIGINT
    except OSError:
        return None


def _engine_of(words: Sequence[str]) -> list[Path]:
    named = os.environ.get(env.ENGINE)
    if named:
        return [Path(named)]
    place = place_of(words, os.environ)
    return [] if place is None else _addresses_of(place)


def control(place: Path, word: str) -> dict[str, Any] | None:
    """Ask the engine of a lake or project for its state, or stop it.

    Args:
        place: as for `address_of`.
        word: `status` or `stop`.

    Returns:
        The engine's state; None without an engine.
    """
    try:
        with _connect_to_one(_addresses_of(place)) as connection:
            send(connection, {"control": word})
            return receive(connection)[0]
    except OSError:
        return None


def connect(address: Path) -> socket.socket:
    """Return a connection to an engine, with the timeout of its first response.

    Raises:
        OSError: nothing listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_TIMEOUT)
    try:
        connection.connect(str(address))
    except OSError:
        connection.close()
        raise
    return connection


def _connect_to_one(addresses: Iterable[Path]) -> socket.socket:
    """Return a connection to the engine that listens at one of several paths.

    Raises:
        OSError: nothing listens there.
    """
    for address in addresses:
        with suppress(OSError):
            return connect(address)
    raise FileNotFoundError("no engine listens")


def _run(connection: socket.socket, words: Sequence[str]) -> int | None:
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "command": list(words),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "umask": umask,
        "stamp": code_stamp(),
    }
    # The command begins when it reads a byte. So it never runs if this process does not wait for
    # it, and it cannot run both there and here.
    begin, starter = os.pipe()
    try:
        try:
            send(connection, request)
            if "ready" not in (receive(connection)[0] or {}):
                # The engine ends, or runs other code.
                return None
            # Not before: an engine that does not respond would keep the files open.
            send(connection, {}, descriptors=(0, 1, 2, begin))
        finally:
            os.close(begin)
        answer = receive(connection)[0] or {}
        if "pid" not in answer:
            return None
        process = os.pidfd_open(answer["pid"])
        try:
            return _begin_and_wait(connection, starter, process)
        finally:
            os.close(process)
    finally:
        os.close(starter)


def _begin_and_wait(connection: socket.socket, starter: int, process: int) -> int:
    """Let a command begin, forward signals to it, and return its exit code.

    Args:
        connection: that to the engine.
        starter: the pipe from which the command reads a byte.
        process: a descriptor of the command's process, whose id may be used again.

    Raises:
        OSError: the command has not begun.
    """

    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)

    # A caller such as nohup lets the command ignore a signal.
    heeded = (number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN)
    before = {number: signal.signal(number, forward) for number in heeded}
    try:
        os.write(starter, b"\0")
        with suppress(OSError):
            connection.settimeout(None)
            answer = receive(connection)[0]
            if answer is not None:
                return int(answer["code"])
        # The engine has ended. The command goes on, and still gets signals.
        select.select([process], [], [])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with suppress(OSError):
        sys.stderr.write(
            "Error: The engine ended while it ran the command, so its exit code is not known.\n"
            "What to do: Run the command again. Nothing is lost: it continues where it stopped.\n"
        )
    return 1
