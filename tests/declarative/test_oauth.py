"""Access tokens are available when they are needed, and refresh tokens are not lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jwt
import pytest

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.http.transport import http_client
from support.declarative.api_access import HIDDEN, Visit
from support.declarative.apis import Api, ReceivedRequest, Reply


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with http_client() as opened:
        yield opened


@pytest.fixture
def api() -> Iterator[Api]:
    with Api({"/items": Reply([])}) as opened:
        yield opened


def oauth(api: Api, **fields: Any) -> dict[str, Any]:
    return {
        "type": "OAuthAuthenticator",
        "token_refresh_endpoint": f"{api.url}/token",
        "client_id": "{{ config['client_id'] }}",
        "client_secret": "{{ config['client_secret'] }}",
        "refresh_token": "{{ config['refresh_token'] }}",
        **fields,
    }


CLIENT = {"client_id": "id", "client_secret": HIDDEN, "refresh_token": "first"}


def test_access_token_is_fetched_and_used_until_it_expires(api: Api, client: httpx.Client) -> None:
    numbers = iter(range(1, 9))
    api.on("/token", lambda _: Reply({"access_token": f"t{next(numbers)}", "expires_in": "100"}))
    visit = Visit(api, client, CLIENT)
    wanted = oauth(api, scopes=["a", "b"], refresh_request_body={"more": "x", "client_id": "no"})

    seen = []
    for seconds in (0, 99, 2):
        visit.time.now += seconds
        seen.append(visit.asks(wanted).headers["authorization"])

    assert seen == ["Bearer t1", "Bearer t1", "Bearer t2"]
    assert api.requests[0].query == []
    assert api.requests[0].body.decode() == (
        "more=x&client_id=id&grant_type=refresh_token"
        f"&client_secret={HIDDEN}&refresh_token=first&scopes=a&scopes=b"
    )


def test_all_threads_and_streams_share_one_token(api: Api, client: httpx.Client) -> None:
    token = Reply({"access_token": "t", "expires_in": 1000}, slow=0.1)
    api.on("/token", token)
    visit = Visit(api, client, CLIENT)
    start = threading.Barrier(8)

    def read(stream: int) -> str:
        wanted = oauth(api) | {"$parameters": {"name": f"stream {stream}"}}
        start.wait()
        return visit.asks(wanted).headers["authorization"]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {"Bearer t"}

    assert api.paths().count("/token") == 1


def test_parameters_distinguish_authenticators_that_refer_to_them(
    api: Api, client: httpx.Client
) -> None:
    visit = Visit(api, client, {})
    bearer = {"type": "BearerAuthenticator", "api_token": "{{ parameters['token'] }}"}

    for token in ("a", "b"):
        asked = visit.asks(bearer | {"$parameters": {"token": token}})
        assert asked.headers["authorization"] == f"Bearer {token}"


def test_refresh_in_the_url_and_by_basic_authentication(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply({"data": {"token": "t"}}))
    visit = Visit(api, client, CLIENT)
    wanted = oauth(
        api,
        send_refresh_request_as_query_params=True,
        refresh_request_headers={"Authorization": "Basic abc"},
        access_token_name="token",
    )

    assert visit.asks(wanted).headers["authorization"] == "Bearer t"
    refresh = api.requests[0]
    assert refresh.params == {"grant_type": "refresh_token", "refresh_token": "first"}
    assert refresh.headers["authorization"] == "Basic abc"
    assert refresh.body == b""
    assert "first" not in visit.log[0].url


@pytest.mark.differs("refresh tokens that change")
def test_rotating_refresh_tokens_are_stored(api: Api, client: httpx.Client) -> None:
    numbers = iter(range(1, 9))

    def answer(_: ReceivedRequest) -> Reply:
        number = next(numbers)
        return Reply({"access_token": f"t{number}", "next": f"r{number}", "expires_in": 100})

    api.on("/token", answer)
    config = {"credentials": dict(CLIENT)}
    visit = Visit(api, client, config)
    wanted = oauth(api, refresh_token_updater={"refresh_token_name": "next"})

    assert visit.asks(wanted).headers["authorization"] == "Bearer t1"
    visit.session = visit.again()
    assert visit.asks(wanted).headers["authorization"] == "Bearer t1"
    visit.time.now += 200
    visit.session = visit.again()
    assert visit.asks(wanted).headers["authorization"] == "Bearer t2"
    refreshed = [request.form["next"] for request in api.requests if request.path == "/token"]
    assert refreshed == ["first", "r1"]

    # After a new sign-in, the stored tokens belong to the old refresh token.
    config["credentials"]["refresh_token"] = "another"
    visit.session = visit.again()
    visit.asks(wanted)
    assert api.requests[-2].form["next"] == "another"


def test_access_token_of_the_config_is_used_until_it_expires(
    api: Api, client: httpx.Client
) -> None:
    api.on("/token", Reply({"access_token": "new", "expires_in": 9}))
    visit = Visit(api, client, {**CLIENT, "token": "old", "expiry": "2023-11-14T22:13:30Z"})
    wanted = oauth(
        api,
        access_token_value="{{ config['token'] }}",
        token_expiry_date="{{ config['expiry'] }}",
    )

    assert visit.asks(wanted).headers["authorization"] == "Bearer old"
    visit.time.now += 11
    assert visit.asks(wanted).headers["authorization"] == "Bearer new"


def test_access_token_without_an_endpoint_is_used_unchanged(api: Api, client: httpx.Client) -> None:
    visit = Visit(api, client, {**CLIENT, "token": "mine"})
    wanted = oauth(api, token_refresh_endpoint=None, access_token_value="{{ config['token'] }}")

    assert visit.asks(wanted).headers["authorization"] == "Bearer mine"


def test_expiry_as_a_date(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply({"access_token": "t", "until": "2023-11-14T22:14:20+00:00"}))
    visit = Visit(api, client, CLIENT)
    wanted = oauth(api, expires_in_name="until", token_expiry_date_format="%Y-%m-%d")

    for seconds in (0, 59, 2):
        visit.time.now += seconds
        visit.asks(wanted)

    assert api.paths() == ["/token", "/items", "/items", "/token", "/items"]


def test_assertion_replaces_a_refresh_token(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply({"access_token": "t"}))
    visit = Visit(api, client, {})
    wanted = {
        "type": "OAuthAuthenticator",
        "token_refresh_endpoint": f"{api.url}/token",
        "use_profile_assertion": True,
        "profile_assertion": {
            "type": "JwtAuthenticator",
            "secret_key": "w" * 32,
            "algorithm": "HS256",
        },
    }

    assert visit.asks(wanted).headers["authorization"] == "Bearer t"
    form = api.requests[0].form
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert jwt.get_unverified_header(form["assertion"])["alg"] == "HS256"


def test_failed_token_request_is_retried(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply(status=500), Reply(status=429), Reply({"access_token": "t"}))
    visit = Visit(api, client, CLIENT)

    assert visit.asks(oauth(api)).headers["authorization"] == "Bearer t"
    assert visit.time.waits == [1, 2]
    api.on("/token", Reply(status=500))
    visit.time.now += 4000
    with pytest.raises(SourceError, match=r"in 9 attempts \(status 500\)"):
        visit.asks(oauth(api))


def test_refused_refresh_is_reported_without_the_token(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply({"error": "invalid_grant", "error_description": HIDDEN}, status=400))

    with pytest.raises(SourceError, match="status 400, invalid_grant") as caught:
        Visit(api, client, CLIENT).asks(oauth(api))

    assert HIDDEN not in str(caught.value)
    assert "Sign in again" in str(caught.value)


def test_rejected_access_token_is_replaced(api: Api, client: httpx.Client) -> None:
    numbers = iter(range(1, 9))
    api.on("/token", lambda _: Reply({"access_token": f"t{next(numbers)}", "expires_in": 1000}))
    api.on(
        "/items",
        lambda asked: Reply(status=200 if asked.headers["authorization"] == "Bearer t2" else 401),
    )
    handler = {
        "type": "DefaultErrorHandler",
        "response_filters": [
            {
                "type": "HttpResponseFilter",
                "http_codes": [401],
                "action": "REFRESH_TOKEN_THEN_RETRY",
            }
        ],
    }
    visit = Visit(api, client, CLIENT)

    assert visit.asks(oauth(api), error_handler=handler).headers["authorization"] == "Bearer t2"
    assert api.paths() == ["/token", "/items", "/token", "/items"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"client_secret": None}, "client_secret"),
        ({"refresh_token": None}, "needs a refresh_token"),
        ({"token_refresh_endpoint": None}, "neither an access token nor"),
        ({"use_profile_assertion": True}, "needs a profile_assertion"),
        ({"client_id": ""}, "client_id is empty"),
    ],
)
def test_incomplete_oauth_settings_are_refused(
    api: Api, client: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Visit(api, client, CLIENT).asks(oauth(api, **fields))


def test_client_credentials_need_no_refresh_token(api: Api, client: httpx.Client) -> None:
    api.on("/token", Reply({"access_token": "t"}))
    visit = Visit(api, client, CLIENT)

    visit.asks(oauth(api, grant_type="client_credentials", refresh_token=None))

    form = {"grant_type": "client_credentials", "client_id": "id", "client_secret": HIDDEN}
    assert api.requests[0].form == form
