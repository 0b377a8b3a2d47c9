"""What finished statements leave behind in the JVM, and when Python lets go of it.

Python's side of a Java object refers to itself in a circle, so that only Python's garbage collector
frees it. That runs by the number of Python's own objects, in a large process almost never, and does
not know that behind a proxy of some hundred bytes a plan keeps megabytes of broadcast rows: without
help, a server's JVM fills up.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import Final

#: Garbage of so many seconds is small, and collecting it costs up to a tenth of one.
_INTERVAL: Final = 2.0

_lock: Final = threading.Lock()
_last = 0.0


def let_go() -> None:
    """Free Java objects that nobody uses any more, unless that was done just now."""
    global _last  # noqa: PLW0603 - the process has one heap
    with _lock:
        now = time.monotonic()
        if now - _last < _INTERVAL:
            return
        _last = now
    gc.collect()


def settle() -> None:
    """Take what the process holds now for permanent, so that collecting looks at new objects only.

    For processes that are all ours: what is garbage later among these objects stays.
    """
    gc.collect()
    gc.freeze()
