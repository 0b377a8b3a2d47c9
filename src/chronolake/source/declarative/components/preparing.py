"""Making all the instances that a stream needs, before anything is read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.components.handles import Decoding, reading, requesting
from chronolake.source.declarative.components.loading import class_of
from chronolake.source.declarative.components.making import Setting, made
from chronolake.source.declarative.components.parentstreams import parent_config_of
from chronolake.source.declarative.language.custom import (
    RUNNABLE,
    CustomAuthenticator,
    CustomComponent,
    CustomPaginationStrategy,
    CustomRecordExtractor,
)
from chronolake.source.declarative.language.records import Decoder, JsonDecoder
from chronolake.source.declarative.language.reports import AsyncRetriever
from chronolake.source.declarative.language.streams import (
    CustomPartitionRouter,
    DeclarativeStream,
    ParentStreamConfig,
    SimpleRetriever,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.components.calls import Calls
    from chronolake.source.declarative.exchange.access import Access
    from chronolake.source.declarative.language.streams import AnyStream
    from chronolake.source.declarative.partitions import Parent

_JSON = JsonDecoder(type="JsonDecoder")


def prepare(
    stream: DeclarativeStream,
    access: Access,
    config: Mapping[str, Any],
    parent_of: Callable[[ParentStreamConfig], Parent],
) -> None:
    """Make an instance for each place of a stream that has a class of the connector's own.

    Its authenticators are made when they are needed, and its parents' when these are read.

    Args:
        stream: the stream.
        access: how requests get there; each has instances of its own.
        config: what the user has set.
        parent_of: gives a stream whose records are partitions.

    Raises:
        ConfigurationError: a class is not there, or a part of it is not as it has to be.
        SourceError: a constructor fails.
    """
    for component, decoder in _components_in(stream, _JSON, ParentStreamConfig):
        if isinstance(component, CustomAuthenticator):
            continue
        given: dict[str, Any] = {}
        if isinstance(component, CustomRecordExtractor | CustomPaginationStrategy):
            given["decoder"] = Decoding(decoder)
        if isinstance(component, CustomPartitionRouter):
            given["parent_stream_configs"] = [
                parent_config_of(one, config, _once(partial(parent_of, one)))
                for one in component.parent_stream_configs
            ]
        ready(component, access, config, **given)


def check(stream: AnyStream) -> None:
    """Import the classes that a stream and its parents need; none is made.

    Raises:
        ConfigurationError: one is not there.
    """
    for component, _ in _components_in(stream, _JSON):
        class_of(component.class_name, component.origin.file)


def has_components(stream: AnyStream) -> bool:
    """Whether a stream, or one of its parents, needs classes of the connector's own."""
    return next(_components_in(stream, _JSON), None) is not None


def ready(
    component: CustomComponent, access: Access, config: Mapping[str, Any], **given: Any
) -> Calls:
    """The instance of a component; arguments and errors as of `prepare`, and of `made`."""
    origin = component.origin

    def within(described: Mapping[str, Any], handle: Callable[[Mapping[str, Any]], Any]) -> Any:
        try:
            return handle(described)
        except ValidationError as failure:
            (first, *_) = failure.errors(include_url=False, include_input=False)
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"What {origin.file} gives {component.class_name} is wrong: {where}: "
                f"{first['msg']}.",
                hint="Components within it are written as they are elsewhere.",
            ) from failure

    def of_requests(described: Mapping[str, Any]) -> Any:
        if described["type"] not in RUNNABLE:
            return requesting(described, access, config, origin)
        inner = CustomComponent.model_validate(dict(described), context=origin)
        return ready(inner, access, config).instance

    setting = Setting(
        owner=access,
        config=config,
        mask=access.network.mask,
        requesting=lambda one: within(one, of_requests),
        reading=lambda one: within(one, lambda same: reading(same, config, origin)),
    )
    return made(component, setting, **given)


def _once(make: Callable[[], Parent]) -> Callable[[], Parent]:
    """What makes a parent at the first time, and gives it again then."""
    kept: list[Parent] = []

    def give() -> Parent:
        if not kept:
            kept.append(make())
        return kept[0]

    return give


def _components_in(
    value: Any, decoder: Decoder, but: type[Any] | tuple[()] = ()
) -> Iterator[tuple[CustomComponent, Decoder]]:
    """The components of a stream, with the decoders of the answers that they see.

    Args:
        value: the stream, or a part of it.
        decoder: of the answers there.
        but: what is passed over with all that is in it.
    """
    if isinstance(value, list | tuple):
        for one in value:
            yield from _components_in(one, decoder, but)
    elif isinstance(value, dict):
        yield from _components_in(list(value.values()), decoder, but)
    elif isinstance(value, BaseModel) and not isinstance(value, but):
        if isinstance(value, CustomComponent):
            yield value, decoder
        if isinstance(value, SimpleRetriever | AsyncRetriever):
            decoder = value.decoder or _JSON
        for name, inner in value:
            of_downloads = isinstance(value, AsyncRetriever) and name == "download_extractor"
            download = getattr(value, "download_decoder", None) if of_downloads else None
            yield from _components_in(inner, download or decoder, but)
