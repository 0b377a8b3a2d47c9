"""Instances of custom components that a stream needs, with what they are given.

What the connector's own classes get in place of components that stand within theirs.

They have the methods that classes call on the reference's, and go the way of all other requests:
with the same limits, waits and credentials, and into the same log.

The parent streams of routers that are the connector's own classes.

They have what such classes ask the reference's streams for, and are read as all streams are.

Making all the instances that a stream needs, before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.components.custom_classes import Setting, class_of, made
from chronolake.source.declarative.components.responses import answer_of, response_of
from chronolake.source.declarative.http.request_builder import Injection, request_of
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
from chronolake.source.declarative.records.decoders import decoded
from chronolake.source.declarative.records.extractors import extraction_of
from chronolake.source.declarative.stream_slice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

    from chronolake.source.declarative.components.custom_classes import Calls
    from chronolake.source.declarative.http.api_session import Access
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


def requesting(
    described: Mapping[str, Any], access: Access, config: Mapping[str, Any], origin: Origin
) -> Any:
    """What stands for a component that makes requests, or None: it makes none.

    Args:
        described: as the manifest has it, with its kind.
        access: how requests get there.
        config: what the user has set.
        origin: where it stands.

    Raises:
        ValidationError: it is not as such a component is.
        ConfigurationError: it cannot be made of the configuration.
    """
    kind = described["type"]
    if kind in _AUTHENTICATORS:
        component = _AUTHENTICATOR.validate_python(dict(described), context=origin)
        url = as_text(described.get("url_base") or "", {"config": config, "parameters": {}})
        return Credentials(access.authentication(component, url))
    if kind == "HttpRequester":
        requester = HttpRequester.model_validate(dict(described), context=origin)
        return Requester(requester, access.sender(requester), config)
    return None


def reading(described: Mapping[str, Any], config: Mapping[str, Any], origin: Origin) -> Any:
    """What stands for a component that reads answers, or None; arguments as of `requesting`."""
    kind = described["type"]
    if kind.endswith("Decoder"):
        return Decoding(_DECODER.validate_python(dict(described), context=origin))
    if kind in {"DpathExtractor", "CombinedExtractor"}:
        component = _EXTRACTOR.validate_python(dict(described), context=origin)
        return Extracting(component, config)
    return None


@dataclass(frozen=True)
class Credentials:
    """An authenticator within an authenticator."""

    authentication: Authentication

    @property
    def auth_header(self) -> str:
        """The header's name; empty: there is none."""
        return next(iter(self.get_auth_header()), "")

    @property
    def token(self) -> str:
        """What the header says."""
        return str(next(iter(self.get_auth_header().values()), ""))

    def get_auth_header(self) -> dict[str, Any]:
        """The headers that prove who asks."""
        return dict(self.authentication.injection().headers)

    def get_request_params(self) -> dict[str, Any]:
        """The parameters that do."""
        return dict(self.authentication.injection().params)

    def get_request_body_data(self) -> dict[str, Any] | str:
        """What does in a form."""
        return self.authentication.injection().body_data

    def get_request_body_json(self) -> dict[str, Any]:
        """What does in a JSON body."""
        return dict(self.authentication.injection().body_json)

    def refresh_and_set_access_token(self) -> None:
        """Gets others with the next request."""
        self.authentication.refresh(self.authentication.injection())

    def __call__(self, request: Any) -> Any:
        """A request with the headers."""
        request.headers.update(self.get_auth_header())
        return request


@dataclass(frozen=True)
class Requester:
    """A requester within a component."""

    requester: HttpRequester
    sender: Sender
    config: Mapping[str, Any]

    def send_request(  # noqa: PLR0917 - the reference's order
        self,
        stream_state: Mapping[str, Any] | None = None,  # noqa: ARG002 - there is none
        stream_slice: Mapping[str, Any] | None = None,
        next_page_token: Mapping[str, Any] | None = None,
        path: str | None = None,
        request_headers: Mapping[str, Any] | None = None,
        request_params: Mapping[str, Any] | None = None,
        request_body_data: Mapping[str, Any] | str | None = None,
        request_body_json: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> requests.Response | None:
        """An answer, or None: there is an error that the requester ignores.

        Raises:
            SourceError: there is no answer.
            ConfigurationError: the request cannot be made.
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
        request = request_of(
            self.requester,
            self.config,
            stream_slice=StreamSlice(dict(stream_slice)) if stream_slice else None,
            next_page_token=next_page_token,
            injected=[more],
            path=path,
        )
        answer = self.sender.send(request)
        return None if answer is None else response_of(answer)


@dataclass(frozen=True)
class Decoding:
    """The decoder of answers that a component reads."""

    decoder: Decoder

    def decode(self, response: requests.Response) -> Iterator[Any]:
        """The bodies in an answer."""
        yield from decoded(self.decoder, answer_of(response))

    def is_stream_response(self) -> bool:
        """Answers are there as a whole."""
        return False


@dataclass(frozen=True)
class Extracting:
    """An extractor within an extractor."""

    extractor: Extractor
    config: Mapping[str, Any]

    def extract_records(self, response: requests.Response) -> list[Any]:
        """The records of an answer."""
        find = extraction_of(self.extractor, JsonDecoder(type="JsonDecoder"), self.config)
        return find(answer_of(response)).records


class Text(str):
    """A text that may have been a template, as classes of the reference's kind ask for it."""

    __slots__ = ()

    @property
    def string(self) -> str:
        """The text."""
        return str(self)

    def eval(self, config: Any = None, **_: Any) -> str:  # noqa: ARG002 - it has been evaluated
        """The text."""
        return str(self)


class ParentRecord(dict[str, Any]):
    """A parent's record, which knows the slice that it stands in."""

    def __init__(self, values: Mapping[str, Any], associated_slice: StreamSlice) -> None:
        super().__init__(values)
        self.associated_slice = associated_slice

    @property
    def data(self) -> dict[str, Any]:
        """The record."""
        return self


class _Place(str):
    """Where a request gets a value; the same as a member of an enumeration with this value."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str(self) == getattr(other, "value", other)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True)
class _Option:
    """How a partition's value gets into requests."""

    inject_into: _Place
    put: Callable[[Any, Any], None]

    def inject_into_request(self, into: dict[str, Any], value: Any, config: Any) -> None:  # noqa: ARG002
        """Puts a value into what goes to its place of a request."""
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
    """How far a parent is; reading it moves it on."""

    parent: Callable[[], Parent]

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.parent().state())

    def observe(self, record: Any) -> None:
        """Reading has seen it."""

    def close_partition(self, partition: Any) -> None:
        """Reading has closed it."""

    def ensure_at_least_one_state_emitted(self) -> None:
        """States are told elsewhere."""


@dataclass(frozen=True)
class ParentStream:
    """A stream that a router reads for its records."""

    name: str
    parent: Callable[[], Parent]

    @property
    def cursor(self) -> _Cursor:
        """How far it is."""
        return _Cursor(self.parent)

    def generate_partitions(self) -> Iterator[_Partition]:
        """Its slices, one after the other; the next may be asked for before one is read."""
        for one, rows in self.parent().slices():
            yield _Partition(one, rows)

    def read_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Its records."""
        for one, record in self.parent().records():
            yield ParentRecord(record, one)

    def read_only_records(self, *_: Any, **__: Any) -> Iterator[ParentRecord]:
        """Its records."""
        return self.read_records()


@dataclass(frozen=True)
class ParentConfig:
    """A parent of a router, as the manifest has it."""

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
    """A parent for a router of the connector's own.

    Args:
        described: as the manifest has it.
        config: what the user has set.
        parent: gives what reads it.

    Raises:
        ConfigurationError: a template cannot be evaluated.
    """
    context = {"config": config, "parameters": described.parameters}

    def text(template: str) -> Text:
        return Text(as_text(template, context))

    if described.lazy_read_pointer:
        raise ConfigurationError(
            f"The parent {described.stream.name} has a lazy_read_pointer, which routers of a "
            "connector's own do not know.",
            hint="Leave the lazy_read_pointer out.",
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
            lambda into, value: _put(cast("Any", option), into, value, config),
        ),
        incremental_dependency=described.incremental_dependency,
    )


def _put(option: Any, into: dict[str, Any], value: Any, config: Mapping[str, Any]) -> None:
    places = {
        "request_parameter": "params",
        "header": "headers",
        "body_data": "body_data",
        "body_json": "body_json",
    }
    Injection(place="a router", **{places[option.inject_into]: into}).put(option, value, config)


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
