"""An API, as described by a manifest and a configuration: the state that its streams share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.http.client import Sender
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.models.requests import HTTPAPIBudget, HttpRequester


@dataclass(frozen=True)
class Api:
    """The state that the streams of a source share; thread-safe.

    Attributes:
        manifest: the manifest, including streams from the configuration and the API.
        config: the user's configuration, after the manifest's rules for it were applied.
        session: the API session.
        budget: limits the rate of calls; None: no limit.
        asked_again: streams that others read for their partitions; their responses are cached.
        may_lack_records: streams whose responses may lack the path of their records.
        may_repeat_tokens: streams whose API uses one page token for all pages.
        reports: limits the number of async jobs that the API runs at a time.
    """

    manifest: Manifest = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    session: ApiSession
    budget: HTTPAPIBudget | None = None
    asked_again: frozenset[str] = frozenset()
    may_lack_records: frozenset[str] = frozenset()
    may_repeat_tokens: frozenset[str] = frozenset()
    reports: threading.Semaphore = field(default_factory=threading.Semaphore)

    @property
    def file(self) -> Path:
        """Return the manifest's file."""
        return self.manifest.file

    def sender(self, requester: HttpRequester, stream: str) -> Sender:
        """Return the client that sends a stream's requests.

        Raises:
            ConfigurationError: the authenticator or the error handler is invalid.
        """
        says_itself = "use_cache" in requester.model_fields_set
        is_kept = True if stream in self.asked_again and not says_itself else None
        return self.session.sender(requester, cached=is_kept)
