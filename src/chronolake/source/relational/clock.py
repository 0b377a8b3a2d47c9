"""Times of transactions in the log of a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.source.relational.changes import Flags, Places


class TimedTransaction(Protocol):
    """A committed transaction."""

    @property
    def commit_lsn(self) -> int:
        """Return its place in the log; transactions are ordered by it."""
        ...

    @property
    def commit_micros(self) -> int:
        """Return its commit time in microseconds since 1970, which may precede earlier ones."""
        ...


@dataclass
class Clock:
    """A clock that assigns strictly increasing times to transactions.

    Transactions are ordered as in the log. If a commit's time is not later than that of its
    predecessor (two processors, a clock that was set back), it counts one step after it. Streams
    that count the same transactions get the same times: tables agree as of every time.

    Attributes:
        last_micros: the time of the last transaction, in microseconds since 1970.
        step_micros: the least time between two transactions, in microseconds.
        latest_micros: a time before which all transactions were committed: a session may give its
            statements any later one.
    """

    last_micros: int
    step_micros: int = 1
    latest_micros: int = 2**62
    _open: int | None = None

    def times(self, transactions: Sequence[TimedTransaction], touched: Flags) -> Places:
        """Return the times of a batch's transactions, in microseconds since 1970.

        Args:
            transactions: the transactions in log order; the first may be the last of the previous
                batch.
            touched: flags of those that count; the times of others are undefined.
        """
        times = np.zeros(len(transactions), np.int64)
        numbers = np.flatnonzero(touched)
        if not len(numbers):
            return times
        commits = np.minimum(
            np.array([transactions[n].commit_micros for n in numbers.tolist()], np.int64),
            self.latest_micros,
        )
        begins = 0
        if transactions[int(numbers[0])].commit_lsn == self._open:
            times[numbers[0]] = self.last_micros
            begins = 1
        offsets = np.arange(len(numbers) - begins) * self.step_micros
        remaining = np.maximum(commits[begins:] - offsets, self.last_micros + self.step_micros)
        times[numbers[begins:]] = np.maximum.accumulate(remaining) + offsets
        self.last_micros = int(times[numbers[-1]])
        self._open = transactions[int(numbers[-1])].commit_lsn
        return times
