"""Answers that are asked for again within one run, e.g. a parent stream's by each of its children.

Source: `specs/airbyte-declarative.md` (2.5).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from chronolake.source.declarative.exchange.answers import Answer

_LIMIT: Final = 64 << 20


class AnswerCache:
    """The answers used last; any number of threads may use it.

    Args:
        limit: bytes that all bodies together may have.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: Hashable) -> Answer | None:
        """The answer to a request, if it is still there."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def keep(self, key: Hashable, answer: Answer) -> None:
        """Keeps an answer, in place of those that were not used for longest."""
        with self._lock:
            before = self._answers.pop(key, None)
            self._size += len(answer.body) - (len(before.body) if before else 0)
            self._answers[key] = answer
            while self._size > self._limit:
                _, oldest = self._answers.popitem(last=False)
                self._size -= len(oldest.body)

    def forget(self) -> None:
        """Keep none of them any more."""
        with self._lock:
            self._answers.clear()
            self._size = 0
