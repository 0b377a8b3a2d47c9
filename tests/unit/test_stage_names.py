"""Names of staged writes show which process makes them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from chronolake.core import staging


def test_threads_that_begin_at_the_same_time_do_not_abandon_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Barrier(2, timeout=30)

    def name_of_host() -> str:
        both.wait()
        return "machine"

    monkeypatch.setattr(staging, "_tokens", {})
    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(socket, "gethostname", name_of_host)
        names = list(threads.map(lambda _: staging.stage_name(), range(2)))
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")

    assert not any(staging.is_abandoned(name) for name in names)
