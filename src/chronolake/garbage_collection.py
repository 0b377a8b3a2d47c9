"""Garbage collection of Java objects that Python no longer uses.

Python's proxy of a Java object is part of a reference cycle, so only Python's garbage collector
frees it. The collector is triggered by the number of Python objects, which in a large process
happens rarely. It does not know that a proxy of some hundred bytes keeps a plan with megabytes of
broadcast rows alive. Without explicit collections, a server's JVM fills up.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from typing import Final

#: Seconds between collections, at least: the garbage stays small, and a collection of one of
#: Chronolake's own processes takes up to 0.1 seconds.
_INTERVAL: Final = 2.0
#: The process of a user may have millions of other objects: the time between two collections is at
#: least this many times the duration of the last one.
_SHARE: Final = 20

_lock: Final = threading.Lock()
_next = 0.0


def collect_garbage() -> None:
    """Free unused Java objects, unless that was done a moment ago."""
    global _next  # noqa: PLW0603 - the process has one heap
    with _lock:
        begin = time.monotonic()
        if begin < _next:
            return
        # Other threads do not wait for this one.
        _next = math.inf
    try:
        gc.collect()
    finally:
        end = time.monotonic()
        _next = max(begin + _INTERVAL, end + _SHARE * (end - begin))


def settle() -> None:
    """Exclude all current objects of the process from later collections.

    Only for Chronolake's own processes: those of the objects that become garbage later are never
    freed.
    """
    gc.collect()
    gc.freeze()
