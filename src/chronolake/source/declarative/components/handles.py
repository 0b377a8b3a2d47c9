"""What the connector's own classes get in place of components that stand within theirs.

They have the methods that classes call on the reference's, and go the way of all other requests:
with the same limits, waits and credentials, and into the same log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from chronolake.source.declarative.components.responses import answer_of, response_of
from chronolake.source.declarative.exchange.injection import Injection
from chronolake.source.declarative.exchange.requesting import request_of
from chronolake.source.declarative.language.records import Decoder, Extractor, JsonDecoder
from chronolake.source.declarative.language.requests import Authenticator, HttpRequester
from chronolake.source.declarative.records.bodies import decoded
from chronolake.source.declarative.records.extracting import extraction_of
from chronolake.source.declarative.streamslice import StreamSlice
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import requests

    from chronolake.source.declarative.exchange.access import Access
    from chronolake.source.declarative.exchange.authenticating import Authentication
    from chronolake.source.declarative.exchange.sending import Sender
    from chronolake.source.declarative.language.custom import Origin

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
