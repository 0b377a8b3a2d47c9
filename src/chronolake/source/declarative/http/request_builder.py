"""Requests built from a requester's templates and from injected options.

Cursors, the paginator, partitions and authenticators inject values in addition to the requester's
own. `build_request` builds a request, `encode` converts it to URL, headers and body; this module
sends nothing.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit, urlunsplit

import requests

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.http.origins import own_origins
from chronolake.source.declarative.models.requests import RequestBodyGraphQL, RequestBodyJsonObject
from chronolake.source.declarative.templating.templates import (
    as_nested,
    as_text,
    evaluate,
    is_template,
    variables_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chronolake.source.declarative.http.origins import Origin
    from chronolake.source.declarative.models.requests import HttpRequester, RequestOption
    from chronolake.source.declarative.stream_slice import StreamSlice
    from chronolake.source.declarative.templating.templates import Context


_SET_ONCE = "Set each part of a request only once."


@dataclass
class Injection:
    """Values for the four parts of a request: parameters, headers, form data and JSON body.

    Attributes:
        place: the component that injects them, as named in error messages, e.g. "the paginator".
    """

    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    body_data: dict[str, Any] | str = field(default_factory=dict)
    body_json: dict[str, Any] = field(default_factory=dict)
    place: str = "the stream"

    def put(
        self, option: RequestOption, value: Any, config: Mapping[str, Any] | None = None
    ) -> None:
        """Put a value into the part of the request that an option names.

        Args:
            option: the target; its names may be templates.
            value: any value; None is stored as None and is not sent.
            config: for templates in the option.

        Raises:
            ConfigurationError: the option's path leads through a value that is not an object, or
                its name is a template and there is no config.
        """
        target = self._target(option)
        texts = option.field_path or [str(option.field_name)]
        names = [_name(text, option, config) for text in texts]
        for name in names[:-1]:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise _collision(".".join(names), self.place, self.place)
        target[names[-1]] = value

    def _target(self, option: RequestOption) -> dict[str, Any]:
        if option.inject_into == "request_parameter":
            return self.params
        if option.inject_into == "header":
            return self.headers
        if option.inject_into == "body_json":
            return self.body_json
        if isinstance(self.body_data, str):
            raise _mixed_body(self.place, self.place)
        return self.body_data


def merge(injections: Iterable[Injection]) -> Injection:
    """Return several injections merged into one.

    Args:
        injections: in the order in which their keys are sent; they are not changed.

    Raises:
        ConfigurationError: two set the same key in the same part. In JSON bodies, equal values are
            allowed and objects are merged.
    """
    result = Injection()
    places: dict[str, dict[str, str]] = {"params": {}, "headers": {}, "body_data": {}}
    json_places: dict[str, str] = {}
    text_from: str | None = None
    for injection in injections:
        for kind, keys in places.items():
            values = getattr(injection, kind)
            if isinstance(values, str):
                text_from = _check_text_body(text_from, keys, injection)
                result.body_data = values
                continue
            if values and kind == "body_data" and text_from is not None:
                raise _mixed_body(text_from, injection.place)
            _add(getattr(result, kind), values, keys, injection.place)
        _add_json(result.body_json, injection.body_json, (), json_places, injection.place)
    return result


def _name(text: str, option: RequestOption, config: Mapping[str, Any] | None) -> str:
    if not is_template(text):
        return text
    if config is None:
        raise ConfigurationError(
            f"The name {text!r} of a request option is a template, which cannot be used here.",
            hint="Replace the template by a fixed name.",
        )
    return as_text(text, {"config": config, "parameters": option.parameters})


def _check_text_body(text_from: str | None, places: Mapping[str, str], injection: Injection) -> str:
    other = text_from or next(iter(places.values()), None)
    if other is not None:
        raise _mixed_body(other, injection.place)
    return injection.place


def _add(
    target: dict[str, Any], values: Mapping[str, Any], places: dict[str, str], place: str
) -> None:
    for key, value in values.items():
        if key in target:
            raise _collision(key, places[key], place)
        target[key] = value
        places[key] = place


def _add_json(
    target: dict[str, Any],
    values: Mapping[str, Any],
    path: tuple[str, ...],
    places: dict[str, str],
    place: str,
) -> None:
    for key, value in values.items():
        key_path = (*path, str(key))
        if key not in target:
            target[key] = deepcopy(value)
            places[".".join(key_path)] = place
        elif isinstance(target[key], dict) and isinstance(value, dict):
            _add_json(target[key], value, key_path, places, place)
        elif target[key] != value:
            raise _collision(".".join(key_path), _place_of(places, key_path), place)


def _place_of(places: Mapping[str, str], path: tuple[str, ...]) -> str:
    """Return the component that set the value at a path, or the closest object around it."""
    return next(
        places[".".join(path[:end])]
        for end in range(len(path), 0, -1)
        if ".".join(path[:end]) in places
    )


def _collision(key: str, first: str, second: str) -> ConfigurationError:
    where = f"twice by {first}" if first == second else f"by {first} and by {second}"
    return ConfigurationError(f"The key {key!r} of a request is set {where}.", hint=_SET_ONCE)


def _mixed_body(first: str, second: str) -> ConfigurationError:
    return ConfigurationError(
        f"The body of a request is text set by {first}, and {second} adds values to it.",
        hint=_SET_ONCE,
    )


#: The types that a parameter's value may have; other literals remain text ("2.10" is not a number).
_VALUE_TYPES: Final = (str, list)
_REQUESTER: Final = "the requester"


@dataclass(frozen=True)
class Request:
    """A request before its parameters, headers and body are encoded.

    Attributes:
        origins: origins that may receive the whole request; others receive only the URL. None: the
            URL itself is from the configuration.
        is_mixed: whether the URL combines values of the configuration with values of a response.
        is_public: whether credentials were omitted because of the request's target.
    """

    method: str
    url: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    json: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] | str = field(default_factory=dict)
    origins: frozenset[Origin] | None = None
    is_mixed: bool = False
    is_public: bool = False

    def with_injection(self, injection: Injection) -> Request:
        """Return this request with more values.

        Raises:
            ConfigurationError: the request already has one of the keys.
        """
        own = Injection(
            params=dict(self.params),
            headers=dict(self.headers),
            body_data=self.data if isinstance(self.data, str) else dict(self.data),
            body_json=dict(self.json),
            place="the request",
        )
        combined = merge([own, injection])
        return replace(
            self,
            params=combined.params,
            headers=combined.headers,
            json=combined.body_json,
            data=combined.body_data,
        )


@dataclass(frozen=True)
class EncodedRequest:
    """A request as it is sent: URL, headers and body.

    Attributes:
        is_public: whether credentials were omitted because of the request's target.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    is_public: bool = False


def build_request(
    requester: HttpRequester,
    config: Mapping[str, Any],
    *,
    stream_slice: StreamSlice | None,
    next_page_token: Mapping[str, Any] | None,
    injected: Sequence[Injection] = (),
    path: str | None = None,
    is_mixed: bool = False,
    trusted_origins: frozenset[Origin] = frozenset(),
) -> Request:
    """Return the request for one page, without credentials.

    Args:
        requester: the component whose templates are evaluated.
        config: the connection's configuration.
        stream_slice: the part of the stream that is read.
        next_page_token: the paginator's values for templates.
        injected: the values added by the paginator, the cursor and the partitions.
        path: the next page's path or URL; replaces the requester's own path.
        is_mixed: whether the manifest puts values of the configuration into that path.
        trusted_origins: more origins that may receive the whole request.

    Raises:
        ConfigurationError: a template fails, a key is set twice, or a parameter is an object.
    """
    context: dict[str, Any] = {
        **({} if stream_slice is None else stream_slice.extra_fields),
        "config": config,
        "parameters": requester.parameters,
        "stream_slice": stream_slice,
        "next_page_token": next_page_token,
    }
    own = Injection(
        params=_params(requester, context, stream_slice),
        headers=_headers(requester, context),
        body_data=_body_data(requester, context),
        body_json=_body_json(requester, context),
        place=_REQUESTER,
    )
    combined = merge([own, *injected])
    for name, value in combined.params.items():
        if isinstance(value, dict):
            raise ConfigurationError(
                f"The request parameter {name!r} is an object.",
                hint="Use a string, a number or a list.",
            )
    url = _url(requester, context, path)
    return Request(
        method=requester.http_method,
        url=url,
        params=combined.params,
        headers=combined.headers,
        json=combined.body_json,
        data=combined.body_data,
        origins=own_origins(requester, context, url) | trusted_origins,
        is_mixed=is_mixed or _is_mixed(requester, path),
    )


def encode(request: Request) -> EncodedRequest:
    """Return a request encoded as it is sent.

    Parameters that the URL already contains with the same value are omitted, and so are null
    values. A GET request keeps its body.

    Raises:
        ConfigurationError: there are two bodies, a body that JSON cannot represent, a header that
            cannot be sent, or an invalid URL.
    """
    headers = _header_fields(request.headers)
    try:
        url = encode_url(_with_params(request.url, request.params))
    except ValueError as error:
        raise _invalid_url() from error
    body, kind = _body(request)
    if kind is not None and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = kind
    return EncodedRequest(request.method, url, headers, body, request.is_public)


def _url(requester: HttpRequester, context: Context, path: str | None) -> str:
    base = as_text(requester.url_base or "", context) or as_text(requester.url or "", context)
    path = path or as_text(requester.path or "", context).lstrip("/")
    if not path:
        return base
    try:
        return urljoin(base if base.endswith("/") else f"{base}/", path)
    except ValueError as error:
        raise _invalid_url() from error


def encode_url(url: str) -> str:
    """Return a URL with all characters percent-encoded that RFC 3986 does not reserve.

    Characters that are already encoded do not change. An invalid URL is returned unchanged.
    """
    prepared = requests.PreparedRequest()
    try:
        prepared.prepare_url(url, None)
    except (requests.RequestException, ValueError):
        return url
    return prepared.url or url


def _is_mixed(requester: HttpRequester, path: str | None) -> bool:
    """Return whether templates put both configuration and response values into a URL."""
    base = variables_of(requester.url_base or requester.url or "")
    own = frozenset[str]() if path else variables_of(requester.path or "")
    others = (base | own) - {"config", "parameters"}
    return bool(others) and "config" in (base | own if base & others else own)


def _invalid_url() -> ConfigurationError:
    return ConfigurationError(
        "The URL of a request is not valid.", hint="Use a URL that begins with https://."
    )


def _params(
    requester: HttpRequester, context: Context, stream_slice: StreamSlice | None
) -> dict[str, Any]:
    inputs = requester.request_parameters or {}
    if isinstance(inputs, str):
        evaluated_inputs = _evaluate(inputs, context)
        return _without_nulls(evaluated_inputs) if isinstance(evaluated_inputs, dict) else {}
    plain = {name: value for name, value in inputs.items() if not _is_query_properties(value)}
    params = _evaluate_pairs(plain, context)
    for name in inputs.keys() - plain.keys():
        extra = {} if stream_slice is None else stream_slice.extra_fields
        properties = extra.get("query_properties")
        if not isinstance(properties, list):
            raise ConfigurationError(
                f"The request parameter {name!r} needs query properties, and the stream has none.",
                hint="Set query_properties in the stream's requester.",
            )
        params[name] = ",".join(map(str, properties))
    return params


def _headers(requester: HttpRequester, context: Context) -> dict[str, Any]:
    inputs = requester.request_headers or {}
    if isinstance(inputs, dict):
        return _without_nulls(
            {evaluate(name, context): evaluate(value, context) for name, value in inputs.items()}
        )
    evaluated_inputs = _evaluate(inputs, context)
    if evaluated_inputs and not isinstance(evaluated_inputs, dict):
        raise ConfigurationError(
            "request_headers does not evaluate to an object.",
            hint="Use an object of names and values.",
        )
    return _without_nulls(evaluated_inputs or {})


def _body_data(requester: HttpRequester, context: Context) -> dict[str, Any] | str:
    body = requester.request_body
    inputs: Any = requester.request_body_data
    if body is not None and not isinstance(body, RequestBodyJsonObject | RequestBodyGraphQL):
        inputs = body.value
    if isinstance(inputs, dict):
        return _evaluate_pairs(inputs, context)
    evaluated_inputs = _evaluate(inputs, context) if inputs else {}
    if isinstance(evaluated_inputs, dict):
        return _without_nulls(evaluated_inputs)
    return str(evaluate(inputs, context, default=inputs, kinds=(str,)))


def _body_json(requester: HttpRequester, context: Context) -> dict[str, Any]:
    body = requester.request_body
    inputs: Any = requester.request_body_json
    if isinstance(body, RequestBodyJsonObject):
        inputs = body.value
    elif isinstance(body, RequestBodyGraphQL):
        inputs = body.value.model_dump(exclude_none=True)
    is_text = isinstance(inputs, str)
    evaluated_inputs = _evaluate(inputs, context) if is_text else as_nested(inputs or {}, context)
    if evaluated_inputs and not isinstance(evaluated_inputs, dict):
        raise ConfigurationError(
            "request_body_json does not evaluate to an object.",
            hint="Use a JSON object.",
        )
    return evaluated_inputs or {}


def _evaluate(template: str, context: Context) -> Any:
    return evaluate(template, context, default=template)


def _evaluate_pairs(inputs: Mapping[str, Any], context: Context) -> dict[str, Any]:
    return _without_nulls(
        {
            evaluate(name, context, kinds=(str,)): evaluate(value, context, kinds=_VALUE_TYPES)
            for name, value in inputs.items()
        }
    )


def _without_nulls(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the pairs to send; pairs without a value are omitted."""
    return {str(name): value for name, value in values.items() if value is not None}


def _is_query_properties(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "QueryProperties"


def _with_params(url: str, params: Mapping[str, Any]) -> str:
    existing = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    # An invalid `%` causes every `%` of a URL to be encoded, and must not reach the parameters.
    parts = urlsplit(encode_url(url))
    pairs = [
        (name, item)
        for name, value in params.items()
        if existing.get(name) != str(value)
        for item in (value if isinstance(value, list | tuple | set) else [value])
        if item is not None
    ]
    query = "&".join(text for text in (parts.query, urlencode(pairs, doseq=True)) if text)
    return urlunsplit(parts._replace(query=query))


def _header_fields(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers by name; names are case-insensitive, and the last value wins."""
    fields: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        text = str(value).strip(" \t")
        if any(sign in text or sign in name for sign in "\r\n\0") or not name.isascii():
            raise ConfigurationError(
                f"The request header {name!r} contains characters that headers must not contain.",
                hint="Remove line breaks from its value.",
            )
        if value is not None:
            fields[name.lower()] = (name, text)
    return dict(fields.values())


def _body(request: Request) -> tuple[bytes | None, str | None]:
    """Return the body and its content type; a text body has no default content type."""
    if request.json and request.data:
        raise ConfigurationError(
            "A request has a JSON body and another body.",
            hint="Use either request_body_json or request_body_data.",
        )
    if request.json:
        try:
            text = json.dumps(request.json, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "The JSON body of a request contains a value that JSON cannot represent.",
                hint="Use strings, numbers, booleans, lists and objects.",
            ) from error
        return text.encode(), "application/json"
    if isinstance(request.data, str):
        return (request.data.encode() or None), None
    pairs = [
        (name, item)
        for name, value in request.data.items()
        for item in (value if isinstance(value, list | tuple) else [value])
        if item is not None
    ]
    if not pairs:
        return None, None
    return urlencode(pairs, doseq=True).encode(), "application/x-www-form-urlencoded"
