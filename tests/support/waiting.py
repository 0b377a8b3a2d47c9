"""Waiting for a condition, with a limit that no machine reaches by being slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Seconds that a test waits for what must happen.
TIMEOUT: Final = 1800.0


def wait_until(is_met: Callable[[], object], what: str) -> None:
    """Wait until a condition is met.

    Raises:
        AssertionError: it was not met in time, with `what` as the message.
    """
    until = time.monotonic() + TIMEOUT
    while not is_met():
        assert time.monotonic() < until, what
        time.sleep(0.05)
