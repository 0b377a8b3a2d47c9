"""What the source of a pipeline remembers: tokens that change with each use.

Every command that asks a source may have to change a token, a look as well as a run, and at the
same time. One that was used already is refused, so only one process at a time changes any, under a
lease that is not the pipeline's and lasts as long as the change: nobody waits for a run. Who waited
for another process is told what that one has got, and need not change it again. A process that was
paused meanwhile for longer than the lease lasts keeps its token only if nobody has another by then.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import PipelineBusyError
from chronolake.pipeline.lease import leased
from chronolake.pipeline.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.config import LakeConfig

#: Longer than a server of tokens is asked for one.
_PATIENCE: Final = 360.0
_PAUSE: Final = 0.1


@dataclass(frozen=True)
class StoredMemory:
    """A memory in the operational store, which is opened, and made, when it is needed.

    Attributes:
        config: the lake whose store it is.
        pipeline: whose source remembers.
    """

    config: LakeConfig
    pipeline: str

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        """What is remembered under a name by now; None: nothing is.

        Raises:
            LakeError: the store does not answer, or the lake can have none.
        """
        return self._known(Store.open(self.config), name)

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Remember what `change` makes of what is remembered by now (`source.offered.Memory`).

        Raises:
            PipelineBusyError: another process has not come to an end with it in six minutes.
            LakeError: the store does not answer, or the lake can have none.
        """
        store = Store.open(self.config)
        with ExitStack() as turn:
            self._take(turn, store)
            known = self._known(store, name)
            reported = change(known)
            if reported != known:
                store.remember(self.pipeline, name, reported, since=known)

    def _known(self, store: Store, name: str) -> Mapping[str, Any] | None:
        known: Mapping[str, Any] | None = store.remembered(self.pipeline).get(name)
        return known

    def _take(self, turn: ExitStack, store: Store) -> None:
        """Wait until no other process changes what is remembered, and keep them from it."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                turn.enter_context(leased(store, f"{self.pipeline}#remembered"))
            except PipelineBusyError as busy:
                if time.monotonic() >= deadline:
                    raise PipelineBusyError(
                        f"Another process has been changing what {self.pipeline} remembers for "
                        f"{_PATIENCE:.0f} seconds.",
                        hint="Run this again once it has come to an end.",
                    ) from busy
                time.sleep(_PAUSE)
            else:
                return
