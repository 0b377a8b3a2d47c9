"""Credentials are sent where the API expects them, and are renewed when they expire."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.request_builder import Request
from chronolake.source.declarative.http.transport import http_client
from chronolake.source.declarative.models.requests import HttpRequester
from support.declarative.api_access import HIDDEN, NOW, Visit
from support.declarative.apis import Api, ReceivedRequest, Reply


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with http_client() as opened:
        yield opened


@pytest.fixture
def api() -> Iterator[Api]:
    with Api({"/items": Reply([])}) as opened:
        yield opened


def option(into: str, name: str | None = None, path: list[str] | None = None) -> dict[str, Any]:
    return {"type": "RequestOption", "inject_into": into, "field_name": name, "field_path": path}


def test_bearer_basic_and_none(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {"token": "1e5", "user": "007", "password": "1.10"})

    bearer = visit.asks({"type": "BearerAuthenticator", "api_token": "{{ config['token'] }}"})
    basic = visit.asks(
        {
            "type": "BasicHttpAuthenticator",
            "username": "{{ config['user'] }}",
            "password": "{{ config['password'] }}",
        }
    )
    none = visit.asks({"type": "NoAuth"})

    assert bearer.headers["authorization"] == "Bearer 1e5"
    assert basic.headers["authorization"] == "Basic " + base64.b64encode(b"007:1.10").decode()
    assert "authorization" not in none.headers


def test_api_key_can_be_in_any_part_of_the_request(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {"key": HIDDEN, "header": "X-Mine"})
    key = {"type": "ApiKeyAuthenticator", "api_token": "{{ config['key'] }}"}
    post = {"http_method": "POST"}

    assert visit.asks(key | {"header": "{{ config['header'] }}"}).headers["x-mine"] == HIDDEN
    assert visit.asks(key | {"inject_into": option("header", "K")}).headers["k"] == HIDDEN
    in_url = visit.asks(key | {"inject_into": option("request_parameter", "k")})
    assert in_url.params == {"k": HIDDEN}
    assert HIDDEN not in visit.log[-1].url
    form = visit.asks(key | {"inject_into": option("body_data", "k")}, **post)
    assert form.form == {"k": HIDDEN}
    nested = visit.asks(
        key | {"inject_into": option("body_json", path=["auth", "key"])},
        **post,
        request_body_json={"auth": {"user": "u"}},
    )
    assert nested.json == {"auth": {"user": "u", "key": HIDDEN}}


@pytest.mark.parametrize("fields", [{}, {"header": "A", "inject_into": option("header", "B")}])
def test_api_key_needs_exactly_one_target(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either inject_into or header"):
        HttpRequester.model_validate(
            {"type": "HttpRequester", "authenticator": {"type": "ApiKeyAuthenticator", **fields}}
        )


def test_config_selects_the_authenticator(api: Api, client: httpx.Client) -> None:
    several = {
        "type": "SelectiveAuthenticator",
        "authenticator_selection_path": ["credentials", "kind"],
        "authenticators": {
            "key": {"type": "ApiKeyAuthenticator", "header": "K", "api_token": "k"},
            "oauth": {"type": "OAuthAuthenticator"},
        },
    }

    visit = Visit(api, client, {"credentials": {"kind": "key"}})
    assert visit.asks(several).headers["k"] == "k"
    for config in ({"credentials": {"kind": "other"}}, {}):
        with pytest.raises(ConfigurationError, match=r"credentials\.kind"):
            Visit(api, client, config).asks(several)


def test_jwt_is_signed_for_each_request(api: Api, client: httpx.Client) -> None:
    secret = "x" * 32
    visit = Visit(api, client, {"secret": secret, "id": "42", "claims": '{"scope": "read"}'})
    signing = {
        "type": "JwtAuthenticator",
        "secret_key": "{{ config['secret'] }}",
        "algorithm": "HS256",
        "token_duration": 60,
        "header_prefix": "Bearer",
        "jwt_headers": {"kid": "{{ config['id'] }}"},
        "additional_jwt_headers": {"x": "y"},
        "jwt_payload": {"iss": "{{ config['id'] }}", "aud": "{{ ['a', 'b'] }}"},
        "additional_jwt_payload": {"scope": "{{ json_loads(config['claims'])['scope'] }}", "n": 1},
    }

    prefix, _, token = visit.asks(signing).headers["authorization"].partition(" ")

    assert prefix == "Bearer"
    head = {"kid": "42", "typ": "JWT", "alg": "HS256", "x": "y"}
    assert jwt.get_unverified_header(token) == head
    options: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    assert jwt.decode(token, secret, ["HS256"], options, audience="a") == {
        "iss": "42",
        "aud": ["a", "b"],
        "scope": "read",
        "n": 1,
        "iat": NOW,
        "nbf": NOW,
        "exp": NOW + 60,
    }
    visit.time.now += 5
    assert visit.asks(signing).headers["authorization"] != f"{prefix} {token}"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("passphrase", [None, "open"])
def test_jwt_with_a_private_key(
    api: Api, client: httpx.Client, algorithm: str, passphrase: str | None
) -> None:
    key: Any = (
        rsa.generate_private_key(65537, 2048)
        if algorithm == "RS256"
        else ec.generate_private_key(ec.SECP256R1())
    )
    locked = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    ).decode()
    visit = Visit(api, client, {"key": pem, "passphrase": passphrase})
    signing = {
        "type": "JwtAuthenticator",
        "secret_key": "{{ config['key'] }}",
        "algorithm": algorithm,
        "passphrase": "{{ config['passphrase'] or '' }}",
        "request_option": option("request_parameter", "jwt"),
    }

    token = visit.asks(signing).params["jwt"]

    visible = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    assert jwt.decode(token, key.public_key(), [algorithm], visible)["iat"] == NOW


def test_jwt_with_a_base64_encoded_key(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {})
    secret = "y" * 32
    signing = {
        "type": "JwtAuthenticator",
        "secret_key": secret,
        "algorithm": "HS256",
        "base64_encode_secret_key": True,
    }

    token = visit.asks(signing).headers["authorization"]

    coded = base64.b64encode(secret.encode()).decode()
    options: Any = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    assert jwt.decode(token, coded, ["HS256"], options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"secret_key": HIDDEN, "algorithm": "RS256"}, "Signing a token with RS256"),
        ({"additional_jwt_headers": {"alg": "none"}}, "additional_jwt_headers must not set alg"),
        ({"additional_jwt_payload": {"exp": 1}}, "additional_jwt_payload must not set exp"),
    ],
)
def test_jwt_that_cannot_be_signed(
    api: Api, client: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    signing = {"type": "JwtAuthenticator", "secret_key": "z" * 32, "algorithm": "HS256", **fields}

    with pytest.raises(ConfigurationError, match=message) as caught:
        Visit(api, client, {}).asks(signing)

    assert HIDDEN not in str(caught.value)


def session(api: Api, **fields: Any) -> dict[str, Any]:
    return {
        "type": "SessionTokenAuthenticator",
        "login_requester": {
            "type": "HttpRequester",
            "url_base": api.url,
            "path": "login",
            "http_method": "POST",
            "request_body_json": {"password": "{{ config['password'] }}"},
        },
        "session_token_path": ["data", "token"],
        "expiration_duration": "PT1H",
        "request_authentication": {"type": "Bearer"},
        **fields,
    }


def counting(form: str = "token-{}", **more: Any) -> Any:
    """Return a reply that contains a new token for each request."""
    numbers = iter(range(1, 1000))

    def answer(asked: ReceivedRequest) -> Reply:
        del asked
        return Reply({"data": {"token": form.format(next(numbers))}, **more})

    return answer


def test_session_logs_in_once_and_again_after_it_expires(api: Api, client: httpx.Client) -> None:
    api.on("/login", counting())
    visit = Visit(api, client, {"password": HIDDEN})

    seen = []
    for seconds in (0, 3599, 2):
        visit.time.now += seconds
        seen.append(visit.asks(session(api)).headers["authorization"])

    assert seen == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
    assert api.requests[0].json == {"password": HIDDEN}


def test_order_of_statuses_does_not_create_another_session(api: Api, client: httpx.Client) -> None:
    """A set's order may change on the way to another process, which has to find the session."""
    api.on("/login", counting())
    visit = Visit(api, client, {"password": HIDDEN})

    for codes in ([404, 412], [412, 404]):
        described = session(api)
        described["login_requester"]["error_handler"] = {
            "type": "DefaultErrorHandler",
            "response_filters": [
                {"type": "HttpResponseFilter", "action": "RETRY", "http_codes": codes}
            ],
        }
        visit.asks(described)

    assert api.paths().count("/login") == 1


def test_session_without_a_duration_logs_in_each_time(api: Api, client: httpx.Client) -> None:
    api.on("/login", counting())
    visit = Visit(api, client, {"password": "p"})
    wanted = session(
        api,
        expiration_duration=None,
        request_authentication={
            "type": "ApiKey",
            "inject_into": option("header", "X-Session"),
            "api_token": "Token {{ session_token }}",
        },
    )

    assert visit.asks(wanted).headers["x-session"] == "Token token-1"
    assert visit.asks(wanted).headers["x-session"] == "Token token-2"


def test_login_in_xml(api: Api, client: httpx.Client) -> None:
    api.on("/login", Reply(b"<data><token>abc</token></data>"))
    visit = Visit(api, client, {"password": "p"})

    asked = visit.asks(session(api, decoder={"type": "XmlDecoder"}))

    assert asked.headers["authorization"] == "Bearer abc"


def test_failed_login_ends_the_read(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {"password": HIDDEN})
    api.on("/login", Reply(status=401))
    with pytest.raises(SourceError, match="POST /login returned status 401"):
        visit.asks(session(api))
    api.on("/login", Reply({"data": {"other": HIDDEN}}))
    with pytest.raises(SourceError, match=r"no token at data\.token") as caught:
        visit.asks(session(api))

    assert HIDDEN not in str(caught.value)


def test_legacy_session_uses_the_configured_token_while_it_is_valid(
    api: Api, client: httpx.Client
) -> None:
    legacy = {
        "type": "LegacySessionTokenAuthenticator",
        "header": "X-Session",
        "login_url": "session",
        "session_token": "{{ config['session'] }}",
        "session_token_response_key": "id",
        "username": "{{ config['user'] }}",
        "password": "{{ config['password'] }}",
        "validate_session_url": "me",
    }
    api.on("/me", lambda asked: Reply(status=200 if asked.headers["x-session"] == "good" else 401))
    api.on("/session", Reply({"id": "made"}))
    user = {"user": "u", "password": "p"}
    fields = {"url_base": f"{api.url}/"}

    good = Visit(api, client, {"session": "good", **user}).asks(legacy, **fields)
    assert good.headers["x-session"] == "good"
    bad = Visit(api, client, {"session": "bad", **user}).asks(legacy, **fields)
    assert bad.headers["x-session"] == "made"
    with pytest.raises(ConfigurationError, match="no user and password"):
        Visit(api, client, {"session": "bad", "user": "", "password": ""}).asks(legacy, **fields)


def test_requester_with_use_cache_shares_responses(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {})
    requester = visit.requester({"type": "NoAuth"}, use_cache=True)

    for _ in range(2):
        visit.session.sender(requester).send(Request("GET", f"{api.url}/items"))
    visit.session.sender(requester, cached=False).send(Request("GET", f"{api.url}/items"))

    assert len(api.requests) == 2
