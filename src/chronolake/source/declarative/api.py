"""An API as a manifest and a configuration describe it: what all of its streams share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.access import Access
from chronolake.source.declarative.language.budget import HTTPAPIBudget
from chronolake.source.declarative.language.streams import (
    DeclarativeStream,
    GroupingPartitionRouter,
    SubstreamPartitionRouter,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from chronolake.source.declarative.language.requests import HttpRequester
    from chronolake.source.declarative.language.streams import AnyStream
    from chronolake.source.declarative.manifest import Manifest
    from chronolake.source.declarative.network import Network
    from chronolake.source.declarative.oauth import Remember
    from chronolake.source.declarative.sending import Sender


@dataclass(frozen=True)
class Api:
    """What the streams of a source share; any number of threads may use it.

    Attributes:
        file: the manifest.
        config: what the user has set.
        access: how requests get there.
        asked_again: streams that others read for their partitions: their answers are kept.
    """

    file: Path
    config: Mapping[str, Any]
    access: Access
    asked_again: frozenset[str] = frozenset()

    def sender(self, requester: HttpRequester, stream: str) -> Sender:
        """What sends the requests of a stream.

        Raises:
            ConfigurationError: the authenticator or the error handler is wrong.
        """
        says_itself = "use_cache" in requester.model_fields_set
        is_kept = True if stream in self.asked_again and not says_itself else None
        return self.access.sender(requester, cached=is_kept)


def api_of(
    manifest: Manifest,
    config: Mapping[str, Any],
    network: Network,
    *,
    remember: Remember | None = None,
    recalled: Mapping[str, Any] | None = None,
) -> Api:
    """The API of a manifest.

    Args:
        manifest: the manifest.
        config: what the user has set.
        network: where requests go.
        remember: keeps what the next run is to recall: tokens that change with each use.
        recalled: what it was given last.

    Raises:
        ConfigurationError: the manifest's budget is none.
    """
    return Api(
        manifest.file,
        config,
        Access(
            network,
            config,
            budget=_budget_of(manifest),
            remember=remember,
            recalled=recalled,
        ),
        frozenset(name for stream in manifest.streams.values() for name in _parents_of(stream)),
    )


def _budget_of(manifest: Manifest) -> HTTPAPIBudget | None:
    described = manifest.content.get("api_budget")
    if not described:
        return None
    try:
        return HTTPAPIBudget.model_validate(described)
    except ValidationError as failure:
        (first, *_) = failure.errors(include_url=False, include_input=False)
        where = ".".join(["api_budget", *map(str, first["loc"])])
        raise ConfigurationError(
            f"{manifest.file}: {where}: {first['msg']}.",
            hint="The manifest's budget says how often the API may be called.",
        ) from failure


def _parents_of(stream: AnyStream) -> Iterator[str]:
    """The streams that a stream reads for its partitions, and those that these read."""
    both = (
        (stream,)
        if isinstance(stream, DeclarativeStream)
        else (stream.full_refresh_stream, stream.incremental_stream)
    )
    for one in both:
        for router in one.retriever.partition_router:
            underlying = (
                router.underlying_partition_router
                if isinstance(router, GroupingPartitionRouter)
                else router
            )
            if isinstance(underlying, SubstreamPartitionRouter):
                for parent in underlying.parent_stream_configs:
                    yield parent.stream.name
                    yield from _parents_of(parent.stream)
