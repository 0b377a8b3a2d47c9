"""An API as a manifest and a configuration describe it: what all of its streams share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from chronolake.source.declarative.http.api_session import Access
    from chronolake.source.declarative.http.client import Sender
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.requests import HTTPAPIBudget, HttpRequester


@dataclass(frozen=True)
class Api:
    """What the streams of a source share; any number of threads may use it.

    Attributes:
        manifest: the manifest, with the streams that configuration and API tell.
        config: what the user has set, as the manifest's rules make it.
        access: how requests get there.
        budget: how often the API may be called; None: as often as we like.
        asked_again: streams that others read for their partitions: their answers are kept.
        may_lack_records: streams whose answers may have nothing where their records should be.
        may_repeat_tokens: streams whose API uses one page token for all pages.
        reports: how many more of them the API may be making at a time.
    """

    manifest: Manifest = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    access: Access
    budget: HTTPAPIBudget | None = None
    asked_again: frozenset[str] = frozenset()
    may_lack_records: frozenset[str] = frozenset()
    may_repeat_tokens: frozenset[str] = frozenset()
    reports: threading.Semaphore = field(default_factory=threading.Semaphore)

    @property
    def file(self) -> Path:
        """The manifest's file."""
        return self.manifest.file

    def sender(self, requester: HttpRequester, stream: str) -> Sender:
        """What sends the requests of a stream.

        Raises:
            ConfigurationError: the authenticator or the error handler is wrong.
        """
        says_itself = "use_cache" in requester.model_fields_set
        is_kept = True if stream in self.asked_again and not says_itself else None
        return self.access.sender(requester, cached=is_kept)
