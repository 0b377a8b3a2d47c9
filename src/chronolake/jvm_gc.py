"""Garbage collection of Java objects that finished statements leave in the JVM.

Python's proxy of a Java object is part of a reference cycle, so only Python's garbage collector
frees it. The collector is triggered by the number of Python objects, which in a large process
happens rarely. It does not know that a proxy of some hundred bytes keeps a plan with megabytes of
broadcast rows alive. Without explicit collections, a server's JVM fills up.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import Final

#: Seconds between collections: the garbage stays small, and a collection takes up to 0.1 seconds.
_INTERVAL: Final = 2.0

_lock: Final = threading.Lock()
_last = 0.0


def let_go() -> None:
    """Free unused Java objects, unless that was done in the last two seconds."""
    global _last  # noqa: PLW0603 - the process has one heap
    with _lock:
        now = time.monotonic()
        if now - _last < _INTERVAL:
            return
        _last = now
    gc.collect()


def settle() -> None:
    """Exclude all current objects of the process from later collections.

    Only for Chronolake's own processes: those of the objects that become garbage later are never
    freed.
    """
    gc.collect()
    gc.freeze()
