"""Connections to an API: its streams, its call budget and its HTTP client."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.api import Api
from chronolake.source.declarative.components.custom_auth import custom_authentication
from chronolake.source.declarative.dynamic_streams import expand
from chronolake.source.declarative.http.api_session import ApiSession
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.capabilities import max_async_jobs
from chronolake.source.declarative.manifests.config_validation import create_mask, prepare_config
from chronolake.source.declarative.models.requests import HTTPAPIBudget
from chronolake.source.declarative.parent_streams import iterate_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from chronolake.config import DeclarativeSource
    from chronolake.source.declarative.http.transport import Exchange
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.protocol import TokenStore


def create_api(
    manifest: Manifest,
    config: Mapping[str, Any],
    network: Network,
    *,
    stream_names: Collection[str] | None = None,
    memory: TokenStore | None = None,
    overrides: Mapping[str, Any] | None = None,
    may_lack_records: Collection[str] = (),
    may_repeat_tokens: Collection[str] = (),
) -> Api:
    """Return the API of a manifest; query it for its streams if the manifest does not list them.

    Args:
        config: the user's configuration.
        network: sends requests.
        stream_names: the streams to find, or None for all. If the manifest lists all of these, the
            API is not queried for others.
        memory: stores values for the next run, such as tokens that change with each use.
        overrides: values that take precedence over the configuration.
        may_lack_records: streams whose responses may lack the path of their records.
        may_repeat_tokens: streams whose API uses one page token for all pages.

    Raises:
        ConfigurationError: the manifest's budget is invalid, the configuration does not match the
            manifest's spec, or its streams cannot be built.
        SourceError: the API does not return its streams.
    """
    manifest.raise_if_unresolved()
    ready = {**prepare_config(config, manifest), **(overrides or {})}
    budget = _parse_budget(manifest)
    session = ApiSession(
        network, ready, custom=custom_authentication, budget=budget, token_store=memory
    )
    reports = threading.Semaphore(max_async_jobs(manifest, ready))
    api = Api(
        manifest,
        ready,
        session,
        budget,
        _parent_names(manifest, stream_names),
        frozenset(may_lack_records),
        frozenset(may_repeat_tokens),
        reports,
    )
    if manifest.lists(stream_names):
        return api
    whole = expand(manifest, api)
    return replace(api, manifest=whole, asked_again=_parent_names(whole, stream_names))


@contextmanager
def open_api(
    manifest: Manifest,
    source: DeclarativeSource,
    *,
    stream_names: Collection[str] | None,
    memory: TokenStore | None = None,
    overrides: Mapping[str, Any] | None = None,
    log: Callable[[Exchange], None] | None = None,
) -> Iterator[Api]:
    """Open the API of a source; its connections are closed when the block ends.

    Args:
        source: the configuration of its source.
        stream_names: see `create_api`.
        memory: see `create_api`.
        overrides: see `create_api`.
        log: called with each request and its response.

    Raises:
        ConfigurationError: see `create_api`.
        SourceError: see `create_api`.
    """
    mask = create_mask(source.config, manifest)
    with http_client(source.allowed_hosts) as client:
        network = Network(
            client,
            allowed_hosts=source.allowed_hosts,
            mask=mask,
            log=log,
            response_timeout=source.response_timeout,
            memory_limit=source.response_memory_mib << 20,
        )
        yield create_api(
            manifest,
            source.config,
            network,
            stream_names=stream_names,
            memory=memory,
            overrides=overrides,
            may_lack_records=source.may_lack_records,
            may_repeat_tokens=source.may_repeat_tokens,
        )


def _parent_names(manifest: Manifest, stream_names: Collection[str] | None) -> frozenset[str]:
    """Return the streams that the wanted streams read for their partitions."""
    return frozenset(
        parent.name
        for name, stream in manifest.streams.items()
        if stream_names is None or name in stream_names
        for parent in iterate_parents(stream)
    )


def _parse_budget(manifest: Manifest) -> HTTPAPIBudget | None:
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
            hint="Correct the manifest's `api_budget`, which limits the rate of calls.",
        ) from failure
