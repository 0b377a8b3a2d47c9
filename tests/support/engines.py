"""Engines in processes of their own: waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

TIMEOUT: Final = 300.0


def wait_until(is_met: Callable[[], object], what: str) -> None:
    """Wait until a condition is met.

    Raises:
        AssertionError: it was not met in time, with `what` as the message.
    """
    until = time.monotonic() + TIMEOUT
    while not is_met():
        assert time.monotonic() < until, what
        time.sleep(0.05)
