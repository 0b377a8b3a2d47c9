"""Stored tokens of a pipeline's source, which change with each use.

Every command that connects to a source may have to refresh a token, even a read-only one, and
several may run at the same time. A used refresh token is rejected. So only one process at a time
refreshes tokens, under a separate lease that lasts as long as the refresh and does not wait for
runs of the pipeline. A process that waited gets the token that the other one has stored, and need
not refresh it again. A process that was paused for longer than the lease stores its token only if
no other process has stored one meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import PipelineBusyError
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.config import LakeConfig

#: Seconds to wait for another process; longer than a token request may take.
_PATIENCE: Final = 360.0
_PAUSE: Final = 0.1


@dataclass(frozen=True)
class StoredTokens:
    """A token store in the operational store, which is opened, and created, when it is needed.

    Attributes:
        config: the lake with the store.
        pipeline: the pipeline with the source.
    """

    config: LakeConfig
    pipeline: str

    def load_token(self, name: str) -> Mapping[str, Any] | None:
        """Return the stored token of a name, or None.

        Raises:
            LakeError: the store is not reachable, or the lake cannot have one.
        """
        return self._load(Store.open(self.config), name)

    def renew(
        self, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> None:
        """Store the token that `change` derives from the stored one (`source.protocol.TokenStore`).

        Raises:
            PipelineBusyError: another process has been refreshing a token for six minutes.
            LakeError: the store is not reachable, or the lake cannot have one.
        """
        store = Store.open(self.config)
        with ExitStack() as turn:
            self._lock(turn, store)
            known = self._load(store, name)
            token = change(known)
            if token != known:
                store.store_token(self.pipeline, name, token, since=known)

    def _load(self, store: Store, name: str) -> Mapping[str, Any] | None:
        known: Mapping[str, Any] | None = store.load_tokens(self.pipeline).get(name)
        return known

    def _lock(self, turn: ExitStack, store: Store) -> None:
        """Wait until no other process refreshes tokens, and lock them until the block ends."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                turn.enter_context(hold_lease(store, f"{self.pipeline}#remembered"))
            except PipelineBusyError as busy:
                if time.monotonic() >= deadline:
                    raise PipelineBusyError(
                        f"Another process has held the lock on the tokens of {self.pipeline} "
                        f"for {_PATIENCE:.0f} seconds.",
                        hint="Run the command again after that process has ended.",
                    ) from busy
                time.sleep(_PAUSE)
            else:
                return
