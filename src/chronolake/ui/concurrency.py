"""Concurrency limit for pages that read rows or files.

Each of these pages holds memory while it is rendered. Without a limit, many requests would use all
memory, and would occupy all threads, so that cheap pages would wait, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

from starlette.concurrency import run_in_threadpool

from chronolake.errors import LakeError
from chronolake.ui.rendering import failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

_AT_ONCE: Final = 3
#: The maximum number of waiting requests, and the maximum seconds that each waits.
_WAITING: Final = 24
_LONGEST_SECONDS: Final = 20
_RETRY_SECONDS: Final = 5
#: A page without one of these parameters shows a choice of tables and reads nothing.
_NAMING: Final = frozenset({"table", "name"})


class Turns:
    """The concurrency limit of one application."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def taken_by(
        self, made: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a page handler that waits for a slot, or answers 503 if it gets none in time.

        Args:
            made: renders the page in a thread. It is not called if the client has disconnected.
        """

        async def answer(request: Request) -> Response:
            if not _NAMING & request.query_params.keys():
                return await run_in_threadpool(made, request)
            if self._waiting >= _WAITING:
                return _busy(request)
            self._waiting += 1
            try:
                is_mine = await self._comes(request)
            finally:
                self._waiting -= 1
            if not is_mine:
                return _busy(request)
            try:
                return await run_in_threadpool(made, request)
            finally:
                self._free.release()

        return answer

    async def _comes(self, request: Request) -> bool:
        """Wait for a slot; return whether one is acquired and the client is still connected."""
        turn = asyncio.ensure_future(self._free.acquire())
        gone = asyncio.ensure_future(_goes(request))
        try:
            await asyncio.wait(
                {turn, gone}, timeout=_LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            self._give_back(turn)
            raise
        finally:
            is_gone = gone.done()
            gone.cancel()
        if turn.done() and not is_gone:
            return True
        self._give_back(turn)
        return False

    def _give_back(self, turn: asyncio.Future[Literal[True]]) -> None:
        if turn.done():
            self._free.release()
        else:
            turn.cancel()


async def _goes(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _busy(request: Request) -> Response:
    reported = LakeError(
        "Too many pages are being read at once.",
        hint="Wait a few seconds and try again. If it stays so, the lake's storage is slow, or "
        "others read much: ask for fewer pages at a time.",
    )
    answer = failed(request, reported, title="The page is busy")
    answer.headers["retry-after"] = str(_RETRY_SECONDS)
    return answer
