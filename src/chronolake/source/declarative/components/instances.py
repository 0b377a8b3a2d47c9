"""Instances of custom components, and the objects that are passed to them.

All instances that a stream needs are created before it is read.

Components that are nested in a custom component are replaced by objects with the methods that
custom classes call on the reference's components. Their requests use the same rate limits, backoff,
credentials and log as all other requests. The parent streams of custom routers have the methods
that such routers call on the reference's streams, and are read like all streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.custom_classes import Setting, get_instance, import_class
from chronolake.source.declarative.http.decoders import decode
from chronolake.source.declarative.http.request_builder import Injection, build_request
from chronolake.source.declarative.http.requests_conversion import (
    from_requests_response,
    to_requests_response,
)
from chronolake.source.declarative.models.base import (
    RUNNABLE,
    CustomAuthenticator,
    CustomComponent,
    CustomPaginationStrategy,
    CustomRecordExtractor,
)
from chronolake.source.declarative.models.records import Decoder, Extractor, JsonDecoder
from chronolake.source.declarative.models.requests import Authenticator, HttpRequester
from chronolake.source.declarative.models.streams import (
    AsyncRetriever,
    CustomPartitionRouter,
    DeclarativeStream,
    ParentStreamConfig,
    SimpleRetriever,
)
from chronolake.source.declarative.records.extractors import create_extraction
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

    from chronolake.source.declarative.custom_classes import Calls
    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.http.auth import Authentication
    from chronolake.source.declarative.http.client import Sender
    from chronolake.source.declarative.models.base import Origin
    from chronolake.source.declarative.models.streams import AnyStream
    from chronolake.source.declarative.partitions import Parent


_AUTHENTICATOR: Final[TypeAdapter[Authenticator]] = TypeAdapter(Authenticator)
_DECODER: Final[TypeAdapter[Decoder]] = TypeAdapter(Decoder)
_EXTRACTOR: Final[TypeAdapter[Extractor]] = TypeAdapter(Extractor)
_AUTHENTICATORS: Final = frozenset(
    {
        "NoAuth",
        "ApiKeyAuthenticator",
        "BearerAuthenticator",
        "BasicHttpAuthenticator",
        "OAuthAuthenticator",
        "JwtAuthenticator",
        "SessionTokenAuthenticator",
        "LegacySessionTokenAuthenticator",
        "RateLimitedMultipleTokenAuthenticator",
        "SelectiveAuthenticator",
    }
)


def replace_requesting(
    described: Mapping[str, Any], session: ApiSession, config: Mapping[str, Any], origin: Origin
) -> Any:
    """Return the object that replaces a component which sends requests, or None for others.

    Args:
        described: the component in the manifest, with its type.
        session: the API session.
        config: the user's configuration.
        origin: the location in the manifest.

    Raises:
        ValidationError: the component is invalid.
        ConfigurationError: it cannot be created from the configuration.
    """
    kind = described["type"]
    if kind in _AUTHENTICATORS:
        component = _AUTHENTICATOR.validate_python(dict(described), context=origin)
        url = as_text(described.get("url_base") or "", {"config": config, "parameters": {}})
        return Credentials(session.authentication(component, url))
    if kind == "HttpRequester":
        requester = HttpRequester.model_validate(dict(described), context=origin)
        return Requester(requester, session.sender(requester), config)
    return None


def replace_reading(described: Mapping[str, Any], config: Mapping[str, Any], origin: Origin) -> Any:
    """Return the object that replaces a component which reads responses, or None for others.

    See `replace_requesting` for the arguments.
    """
    kind = described["type"]
    if kind.endswith("Decoder"):
        return ComponentDecoder(_DECODER.validate_python(dict(described), context=origin))
    if kind in {"DpathExtractor", "CombinedExtractor"}:
        component = _EXTRACTOR.validate_python(dict(described), context=origin)
        return ComponentExtractor(component, config)
    return None


@dataclass(frozen=True)
class Credentials:
    """An authenticator inside a custom authenticator."""

    authentication: Authentication

    @property
    def auth_header(self) -> str:
        """Return the name of the authentication header, or an empty string."""
        return next(iter(self.get_auth_header()), "")

    @property
    def token(self) -> str:
        """Return the value of the authentication header, or an empty string."""
        return str(next(iter(self.get_auth_header().values()), ""))

    def get_auth_header(self) -> dict[str, Any]:
        """Return the authentication headers."""
        return dict(self.authentication.injection().headers)

    def get_request_params(self) -> dict[str, Any]:
        """Return the authentication parameters."""
        return dict(self.authentication.injection().params)

    def get_request_body_data(self) -> dict[str, Any] | str:
        """Return the authentication values of a form body."""
        return self.authentication.injection().body_data

    def get_request_body_json(self) -> dict[str, Any]:
        """Return the authentication values of a JSON body."""
        return dict(self.authentication.injection().body_json)

    def refresh_and_set_access_token(self) -> None:
        """Refresh the credentials for the next request."""
        self.authentication.refresh(self.authentication.injection())

    def __call__(self, request: Any) -> Any:
        """Add the authentication headers to a request and return it."""
        request.headers.update(self.get_auth_header())
        return request


@dataclass(frozen=True)
class Requester:
    """A requester inside a custom component."""

    requester: HttpRequester
    sender: Sender
    config: Mapping[str, Any]

    def send_request(  # noqa: PLR0917 - the reference's order
        self,
        stream_state: Mapping[str, Any] | None = None,  # noqa: ARG002 - not used
        stream_slice: Mapping[str, Any] | None = None,
        next_page_token: Mapping[str, Any] | None = None,
        path: str | None = None,
        request_headers: Mapping[str, Any] | None = None,
        request_params: Mapping[str, Any] | None = None,
        request_body_data: Mapping[str, Any] | str | None = None,
        request_body_json: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> requests.Response | None:
        """Send a request and return the response, or None if an ignored error occurred.

        Raises:
            SourceError: the request failed.
            ConfigurationError: the request cannot be created.
        """
        more = Injection(
            params=dict(request_params or {}),
            headers=dict(request_headers or {}),
            body_data=request_body_data
            if isinstance(request_body_data, str)
            else dict(request_body_data or {}),
            body_json=dict(request_body_json or {}),
            place="a component",
        )
        request = build_request(
            self.requester,
            self.config,
            stream_slice=StreamSlice(dict(stream_slice)) if stream_slice else None,
            next_page_token=next_page_token,
            injected=[more],
            path=path,
        )
        answer = self.sender.send(request)
        return None if answer is None else to_requests_response(answer)


@dataclass(frozen=True)
class ComponentDecoder:
    """A decoder for responses that a custom component reads."""

    decoder: Decoder

    def decode(self, response: requests.Response) -> Iterator[Any]:
        """Yield the bodies of a response."""
        yield from decode(self.decoder, from_requests_response(response))

    def is_stream_response(self) -> bool:
        """Return False, because responses are read completely."""
        return False


@dataclass(frozen=True)
class ComponentExtractor:
    """An extractor inside a custom extractor."""

    extractor: Extractor
    config: Mapping[str, Any]

    def extract_records(self, response: requests.Response) -> list[Any]:
        """Return the records of a response."""
        find = create_extraction(self.extractor, JsonDecoder(type="JsonDecoder"), self.config)
        return find(from_requests_response(response)).records


class Text(str):
    """A rendered template with the interface of the reference's template strings."""

    __slots__ = ()

    @property
    def string(self) -> str:
        """Return the string."""
        return str(self)

    def eval(self, config: Any = None, **_: Any) -> str:  # noqa: ARG002 - already evaluated
        """Return the string."""
        return str(self)


class ParentRecord(dict[str, Any]):
    """A parent's record with its slice."""

    def __init__(self, values: Mapping[str, Any], associated_slice: StreamSlice) -> None:
        super().__init__(values)
        self.associated_slice = associated_slice

    @property
    def data(self) -> dict[str, Any]:
        """Return the record."""
        return self


class _Place(str):
    """The place of a value in a request, which equals an enum member with the same value."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == getattr(other, "value", other)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True)
class _Option:
    """The request option of a partition's value."""

    inject_into: _Place
    put: Callable[[Any, Any], None]

    def inject_into_request(self, into: dict[str, Any], value: Any, config: Any) -> None:  # noqa: ARG002
        """Add a value to the part of a request that it belongs to."""
        self.put(into, value)


@dataclass(frozen=True)
class _Partition:
    slice: StreamSlice
    rows: Callable[[], Iterator[Mapping[str, Any]]]

    def read(self) -> Iterator[ParentRecord]:
        for record in self.rows():
            yield ParentRecord(record, self.slice)

    def to_slice(self) -> StreamSlice:
        return self.slice


@dataclass(frozen=True)
class _Cursor:
    """The cursor of a parent stream; reading the parent advances it."""

    parent: Callable[[], Parent]

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.parent().state())

    def observe(self, record: Any) -> None:
        """Do nothing, because reading the stream observes records."""

    def close_partition(self, partition: Any) -> None:
        """Do nothing, because reading the stream closes partitions."""

    def ensure_at_least_one_state_emitted(self) -> None:
        """Do nothing, because states are emitted elsewhere."""


@dataclass(frozen=True)
class ParentStream:
    """A parent stream, whose records a router reads."""

    name: str
    parent: Callable[[], Parent]

    @property
    def cursor(self) -> _Cursor:
        """Return the cursor of the stream."""
        return _Cursor(self.parent)

    def generate_partitions(self) -> Iterator[_Partition]:
        """Yield the slices of the stream; the next one may be requested before one is read."""
        for stream_slice, rows in self.parent().slices():
            yield _Partition(stream_slice, rows)

    def read_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Yield the records of the stream."""
        for stream_slice, record in self.parent().records():
            yield ParentRecord(record, stream_slice)

    def read_only_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Yield the records of the stream."""
        return self.read_records()


@dataclass(frozen=True)
class ParentConfig:
    """The configuration of a router's parent stream."""

    stream: ParentStream
    parent_key: Text
    partition_field: Text
    extra_fields: list[list[Text]] | None
    lazy_read_pointer: list[Text] | None
    request_option: _Option | None
    incremental_dependency: bool


def parent_config_of(
    described: ParentStreamConfig, config: Mapping[str, Any], parent: Callable[[], Parent]
) -> ParentConfig:
    """Return the configuration of a parent stream for a custom router.

    Args:
        described: the configuration in the manifest.
        config: the user's configuration.
        parent: returns the reader of the parent stream.

    Raises:
        ConfigurationError: a template cannot be evaluated, or the parent has a lazy_read_pointer.
    """
    context = {"config": config, "parameters": described.parameters}

    def text(template: str) -> Text:
        return Text(as_text(template, context))

    if described.lazy_read_pointer:
        raise ConfigurationError(
            f"The parent {described.stream.name} has a lazy_read_pointer, which "
            "custom routers do not support.",
            hint="Remove the lazy_read_pointer.",
        )
    option = described.request_option
    return ParentConfig(
        stream=ParentStream(described.stream.name, parent),
        parent_key=text(described.parent_key),
        partition_field=text(described.partition_field),
        extra_fields=[[text(part) for part in path] for path in described.extra_fields] or None,
        lazy_read_pointer=None,
        request_option=None
        if option is None
        else _Option(
            _Place(option.inject_into),
            lambda into, value: _inject_option(cast("Any", option), into, value, config),
        ),
        incremental_dependency=described.incremental_dependency,
    )


def _inject_option(
    option: Any, into: dict[str, Any], value: Any, config: Mapping[str, Any]
) -> None:
    places = {
        "request_parameter": "params",
        "header": "headers",
        "body_data": "body_data",
        "body_json": "body_json",
    }
    Injection(place="a router", **{places[option.inject_into]: into}).put(option, value, config)


_JSON = JsonDecoder(type="JsonDecoder")


def create_instances(
    stream: DeclarativeStream,
    session: ApiSession,
    config: Mapping[str, Any],
    parent_of: Callable[[ParentStreamConfig], Parent],
) -> None:
    """Create an instance of each custom class that a stream needs.

    Each API session (`session`) has its own instances. Authenticators are created when they are
    needed, and the components of parent streams when these are read. `parent_of` returns the reader
    of a parent stream.

    Raises:
        ConfigurationError: a class does not exist, or an argument of it is invalid.
        SourceError: a constructor fails.
    """
    for component, decoder in _components_in(stream, _JSON, ParentStreamConfig):
        if isinstance(component, CustomAuthenticator):
            continue
        given: dict[str, Any] = {}
        if isinstance(component, CustomRecordExtractor | CustomPaginationStrategy):
            given["decoder"] = ComponentDecoder(decoder)
        if isinstance(component, CustomPartitionRouter):
            given["parent_stream_configs"] = [
                parent_config_of(parent, config, _create_once(partial(parent_of, parent)))
                for parent in component.parent_stream_configs
            ]
        instantiate(component, session, config, **given)


def import_classes(stream: AnyStream) -> None:
    """Import the custom classes that a stream and its parents need, without creating instances.

    Raises:
        ConfigurationError: a class does not exist.
    """
    for component, _ in _components_in(stream, _JSON):
        import_class(component.class_name, component.origin.file)


def has_components(stream: AnyStream) -> bool:
    """Return whether a stream or one of its parents needs custom classes."""
    return next(_components_in(stream, _JSON), None) is not None


def instantiate(
    component: CustomComponent, session: ApiSession, config: Mapping[str, Any], **given: Any
) -> Calls:
    """Return the instance of a component; see `get_instance` for errors."""
    origin = component.origin

    def within(described: Mapping[str, Any], handle: Callable[[Mapping[str, Any]], Any]) -> Any:
        try:
            return handle(described)
        except ValidationError as failure:
            (first, *_) = failure.errors(include_url=False, include_input=False)
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"{origin.file} has an invalid component inside {component.class_name}: "
                f"{where}: {first['msg']}.",
                hint="Write components inside a custom component as anywhere else in the manifest.",
            ) from failure

    def of_requests(component: Mapping[str, Any]) -> Any:
        if component["type"] not in RUNNABLE:
            return replace_requesting(component, session, config, origin)
        inner = CustomComponent.model_validate(dict(component), context=origin)
        return instantiate(inner, session, config).instance

    setting = Setting(
        owner=session,
        config=config,
        mask=session.network.mask,
        requesting=lambda component_dict: within(component_dict, of_requests),
        reading=lambda component_dict: within(
            component_dict, lambda same: replace_reading(same, config, origin)
        ),
    )
    return get_instance(component, setting, **given)


def _create_once(make: Callable[[], Parent]) -> Callable[[], Parent]:
    """Return a function that creates a parent at the first call and returns the same one later."""
    kept: list[Parent] = []

    def give() -> Parent:
        if not kept:
            kept.append(make())
        return kept[0]

    return give


def _components_in(
    value: Any, decoder: Decoder, but: type[Any] | tuple[()] = ()
) -> Iterator[tuple[CustomComponent, Decoder]]:
    """Yield the custom components of a stream with the decoders of the responses that they read.

    Args:
        value: the stream, or a part of it.
        decoder: the decoder of responses at this level.
        but: the types of components that are skipped with all their content.
    """
    if isinstance(value, list | tuple):
        for item in value:
            yield from _components_in(item, decoder, but)
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
