"""Messages between an engine and its clients: JSON after its length, with open files.

Only the standard library is imported, because the client runs before everything else.
"""

from __future__ import annotations

import array
import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LENGTH_BYTES: Final = 4
_MAX_FILES: Final = 4


def send(
    connection: socket.socket, message: Mapping[str, Any], *, descriptors: Sequence[int] = ()
) -> None:
    """Send a message, and open files with it.

    Args:
        connection: a connected Unix socket.
        message: JSON types; texts may contain the undecodable bytes of paths and variables.
        descriptors: up to four open files.

    Raises:
        OSError: the connection has ended.
    """
    body = json.dumps(message).encode("ascii")
    head = len(body).to_bytes(_LENGTH_BYTES, "big")
    if descriptors:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        connection.sendmsg([head], [rights])
        connection.sendall(body)
    else:
        connection.sendall(head + body)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message, and the open files that came with it.

    Returns:
        None instead of a message if the other side has closed the connection.

    Raises:
        OSError: the connection ended within a message, or its timeout has passed.
    """
    size = array.array("i").itemsize
    head, rights, _, _ = connection.recvmsg(_LENGTH_BYTES, socket.CMSG_SPACE(_MAX_FILES * size))
    files = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % size])
    if not head:
        return None, list(files)
    head += _read(connection, _LENGTH_BYTES - len(head))
    body = _read(connection, int.from_bytes(head, "big"))
    message: dict[str, Any] = json.loads(body)
    return message, list(files)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 2**16))
        if not part:
            raise ConnectionError("the connection ended within a message")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
