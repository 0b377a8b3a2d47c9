"""Taking turns: only a few pages that read rows or files are made at once.

Each of them holds memory while it is made. Without turns, many requests would hold all that there
is, and keep every thread from the pages that are made in no time.
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
#: So many requests wait for their turn, and each of them at most so long.
_WAITING: Final = 24
_LONGEST_SECONDS: Final = 20
_RETRY_SECONDS: Final = 5
#: Without one of these a page offers a choice, and reads nothing.
_NAMING: Final = frozenset({"table", "name"})


class Turns:
    """The turns of one application."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def taken_by(
        self, made: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A page that waits for its turn, and tells what to do if that does not come.

        Args:
            made: makes the page, in a thread. It is not called for a client that has gone.
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
        """Wait for a turn; whether it has come, and somebody still waits for the page."""
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
    """End when the client has gone."""
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
