"""What is cleaned up if SIGTERM or SIGHUP ends this process.

Without a handler, these signals end a process at once, without its `finally` blocks: programs that
it has started go on, and its temporary files remain. SIGKILL cannot be handled; what it leaves is
removed by a later process (`private_folder`).
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_numbers: Final = itertools.count()
#: What is called, by number, with the process that has registered it: a fork must not call it.
_actions: Final[dict[int, tuple[int, Callable[[], object]]]] = {}


@contextmanager
def run_at_termination(action: Callable[[], object]) -> Iterator[None]:
    """Call a function if a signal ends this process before the block does.

    The process still ends by the signal. A process that handles SIGTERM itself ends its blocks.

    Args:
        action: is called in the main thread, at any point of its code. It must not wait for locks.
    """
    number = next(_numbers)
    _actions[number] = os.getpid(), action
    _set_handlers(_end, instead_of=signal.SIG_DFL)
    try:
        yield
    finally:
        del _actions[number]
        if not _actions:
            _set_handlers(signal.SIG_DFL, instead_of=_end)


def _set_handlers(handler: signal._HANDLER, *, instead_of: signal._HANDLER) -> None:
    # Python allows it only there.
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) == instead_of:
                signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    # A second signal ends the process at once.
    signal.signal(number, signal.SIG_DFL)
    for process, action in reversed(list(_actions.values())):
        if process == os.getpid():
            with suppress(Exception):
                action()
    os.kill(os.getpid(), number)
