"""Python components beside a manifest: how the class of each kind is called, and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.connector_folders import HIDDEN, connector, own
from support.declarative.stream_reads import option, requester, retriever, stream

ITEMS = {"data": [{"id": 1}, {"id": 2}]}


def test_an_extractor_sees_a_whole_response(tmp_path: Path) -> None:
    code = """
    from dataclasses import InitVar, dataclass

    @dataclass
    class Words:
        config: dict
        parameters: InitVar[dict]
        field: str
        prefix: str = "none"

        def __post_init__(self, parameters):
            self.prefix = parameters["prefix"]

        def extract_records(self, response):
            assert response.ok and response.url.endswith("/items")
            assert response.headers["content-type"] == "application/json"
            for number, line in enumerate(response.iter_lines()):
                yield {"id": f"{self.prefix}{number}", self.field: line.decode()}
            yield {"id": response.status_code, "json": response.json(), "of": response.text}
    """
    extractor = own("RecordExtractor", "Words", field="word", **{"$parameters": {"prefix": "n"}})
    selector = {"type": "RecordSelector", "extractor": extractor}
    found = connector(tmp_path, code, stream(retriever=retriever(record_selector=selector)))
    kind = {"Content-Type": "application/json"}
    with Api({"/items": Reply(b"[1,\n2]", headers=kind)}) as api:
        reading = found.reading(api)
    assert reading.result.failure is None
    assert reading.result.records == [
        {"id": "n0", "word": "[1,"},
        {"id": "n1", "word": "2]"},
        {"id": 200, "json": [1, 2], "of": "[1,\n2]"},
    ]


def test_an_extractor_reads_with_the_decoder_and_the_extractor_that_it_is_given(
    tmp_path: Path,
) -> None:
    code = """
    class Both:
        def __init__(self, decoder, inner):
            self.decoder, self.inner = decoder, inner

        def extract_records(self, response):
            rows = [{"id": row["id"]} for row in self.decoder.decode(response)]
            return rows + self.inner.extract_records(response)
    """
    inner = {"type": "DpathExtractor", "field_path": ["data"]}
    described = retriever(
        record_selector={"extractor": own("RecordExtractor", "Both", inner=inner)},
        decoder={"type": "JsonlDecoder"},
    )
    found = connector(tmp_path, code, stream(retriever=described))
    with Api({"/items": Reply({"id": 7, "data": [{"id": 8}]})}) as api:
        assert found.reading(api).ids == [7, 8]


def test_transformations_change_records_in_place_before_and_after_others(tmp_path: Path) -> None:
    code = """
    class Doubled:
        def transform(self, record, config=None, stream_state=None, stream_slice=None):
            record["twice"] = record["id"] * config["factor"]
            record["of"] = stream_slice["team"]
            return {"this": "does not count"}
    """
    added = {"type": "AddedFieldDefinition", "path": ["more"], "value": "{{ record.twice + 1 }}"}
    router = {"type": "ListPartitionRouter", "cursor_field": "team", "values": ["a"]}
    described = stream(
        retriever=retriever(partition_router=router),
        transformations=[
            own("Transformation", "Doubled"),
            {"type": "AddFields", "fields": [added]},
        ],
    )
    found = connector(tmp_path, code, described)
    with Api({"/items": Reply(ITEMS)}) as api:
        records = found.reading(api, config={"factor": 10}).result.records
    assert records == [
        {"id": 1, "twice": 10, "of": "a", "more": 11},
        {"id": 2, "twice": 20, "of": "a", "more": 21},
    ]


def test_a_filter_sees_all_records_of_a_page(tmp_path: Path) -> None:
    code = """
    class Last:
        def filter_records(self, records, stream_state, stream_slice=None, next_page_token=None):
            assert not stream_slice
            yield from list(records)[-1:]
    """
    described = retriever()
    described["record_selector"]["record_filter"] = own("RecordFilter", "Last")
    found = connector(tmp_path, code, stream(retriever=described))
    with Api({"/items": Reply(ITEMS)}) as api:
        assert found.reading(api).ids == [2]


def test_a_normalization_knows_the_schema_of_its_own_loader(tmp_path: Path) -> None:
    code = """
    class Schema:
        def __init__(self, config):
            self.config = config

        def get_json_schema(self):
            return {"type": "object", "properties": {self.config["field"]: {"type": "string"}}}

    class Texts:
        def transform(self, record, schema):
            for name in schema["properties"]:
                record[name] = str(record[name])
    """
    described = retriever()
    described["record_selector"]["schema_normalization"] = own("SchemaNormalization", "Texts")
    loader = own("SchemaLoader", "Schema")
    found = connector(tmp_path, code, stream(retriever=described, schema_loader=loader))
    with Api({"/items": Reply(ITEMS)}) as api:
        assert found.reading(api, config={"field": "id"}).ids == ["1", "2"]


def test_a_decoder_makes_bodies_for_records_and_pages(tmp_path: Path) -> None:
    code = """
    class Pairs:
        def decode(self, response):
            yield dict(line.split("=") for line in response.text.split(";"))
    """
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": option("page"),
        "pagination_strategy": {
            "type": "CursorPagination",
            "cursor_value": "{{ response.get('next') }}",
        },
    }
    described = retriever(decoder=own("Decoder", "Pairs"), paginator=paginator)
    described["record_selector"]["extractor"]["field_path"] = []
    found = connector(tmp_path, code, stream(retriever=described))
    with Api({"/items": [Reply(b"id=a;next=2"), Reply(b"id=b")]}) as api:
        assert found.reading(api).ids == ["a", "b"]
        assert [asked.params for asked in api.requests] == [{}, {"page": "2"}]


def test_a_pagination_strategy_determines_the_first_page_and_the_page_size(
    tmp_path: Path,
) -> None:
    code = """
    class Letters:
        initial_token = "a"

        def get_page_size(self):
            return 2

        def next_page_token(self, response, last_page_size, last_record, last_page_token_value):
            assert last_record["id"] == response.json()["data"][-1]["id"]
            return chr(ord(last_page_token_value) + 1) if last_page_size == 2 else None
    """
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": option("page"),
        "page_size_option": option("size"),
        "pagination_strategy": own("PaginationStrategy", "Letters"),
    }
    found = connector(tmp_path, code, stream(retriever=retriever(paginator=paginator)))
    with Api({"/items": [Reply(ITEMS), Reply({"data": [{"id": 3}]})]}) as api:
        assert found.reading(api).ids == [1, 2, 3]
        assert [asked.query for asked in api.requests] == [
            [("page", "a"), ("size", "2")],
            [("page", "b"), ("size", "2")],
        ]


def test_an_error_handler_determines_the_action_and_the_backoff(tmp_path: Path) -> None:
    code = """
    from dataclasses import dataclass

    @dataclass
    class Resolution:
        response_action: str
        error_message: str = None

    class Patient:
        max_retries = 2

        @property
        def backoff_strategies(self):
            return [self]

        def backoff_time(self, response_or_exception, attempt_count):
            return attempt_count * 10

        def interpret_response(self, response_or_exception):
            if isinstance(response_or_exception, Exception):
                return {"response_action": "RETRY"}
            status = response_or_exception.status_code
            if status == 418:
                return Resolution("RATE_LIMITED", "the pot is empty")
            return Resolution("SUCCESS" if status == 200 else "FAIL", "it is over")
    """
    handler = {"error_handler": own("ErrorHandler", "Patient")}
    found = connector(tmp_path, code, stream(retriever=retriever(asks=handler)))
    teapot = Reply(status=418)
    with Api({"/items": [teapot, Reply(cut=0), Reply(ITEMS)]}) as api:
        reading = found.reading(api)
    assert reading.ids == [1, 2]
    assert reading.waits == [11, 21]
    with Api({"/items": [teapot, teapot, teapot]}) as api:
        failure = found.reading(api).result.failure
    assert "status 418 after 3 attempts. the pot is empty" in str(failure)


def test_a_custom_backoff_strategy_works_beside_others(tmp_path: Path) -> None:
    code = """
    class Reset:
        def backoff_time(self, response_or_exception, attempt_count):
            wanted = response_or_exception.headers.get("X-Reset")
            return float(wanted) if wanted else None
    """
    strategies = [
        own("BackoffStrategy", "Reset"),
        {"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 3},
    ]
    handler = {"type": "DefaultErrorHandler", "backoff_strategies": strategies}
    described = stream(retriever=retriever(asks={"error_handler": handler}))
    found = connector(tmp_path, code, described)
    answers = [Reply(status=503, headers={"X-Reset": "7"}), Reply(status=503), Reply(ITEMS)]
    with Api({"/items": answers}) as api:
        assert found.reading(api).waits == [8, 4]


def test_a_router_reads_its_parents_and_passes_partitions_to_requests(tmp_path: Path) -> None:
    code = """
    class Even:
        def __init__(self, config, parent_stream_configs):
            self.parents = parent_stream_configs

        def stream_slices(self):
            for parent in self.parents:
                for record in parent.stream.read_records():
                    if record[parent.parent_key] % 2 == 0:
                        yield {parent.partition_field: record[parent.parent_key]}

        def get_request_params(self, stream_slice=None, **kwargs):
            return {"team": stream_slice["team"]}
    """
    parent = {"parent_key": "id", "partition_field": "team", "stream": stream("teams")}
    parent["stream"]["retriever"] = retriever("/teams")
    router = own("PartitionRouter", "Even", parent_stream_configs=[parent])
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "at",
        "datetime_format": "%Y",
        "start_datetime": "2020",
        "end_datetime": "2024",
    }
    described = stream(retriever=retriever(partition_router=router), incremental_sync=cursor)
    found = connector(tmp_path, code, described)
    teams = {"data": [{"id": 1}, {"id": 2}, {"id": 4}]}

    def items(asked: ReceivedRequest) -> Reply:
        return Reply({"data": [{"id": asked.params["team"], "at": "2022"}]})

    with Api({"/teams": Reply(teams), "/items": items}) as api:
        reading = found.reading(api)
    assert reading.ids == ["2", "4"]
    assert reading.result.state is not None
    assert reading.result.state["states"] == [
        {"partition": {"team": 2}, "cursor": {"at": "2022"}},
        {"partition": {"team": 4}, "cursor": {"at": "2022"}},
    ]


def test_a_state_is_migrated_before_it_is_read(tmp_path: Path) -> None:
    code = """
    class Renamed:
        def should_migrate(self, stream_state):
            return "old" in stream_state

        def migrate(self, stream_state):
            return {"at": stream_state["old"]}
    """
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "at",
        "datetime_format": "%Y",
        "start_datetime": "2020",
        "end_datetime": "2024",
        "start_time_option": option("from"),
    }
    described = stream(incremental_sync=cursor, state_migrations=[own("StateMigration", "Renamed")])
    found = connector(tmp_path, code, described)
    with Api({"/items": Reply({"data": []})}) as api:
        assert found.reading(api, state={"old": "2022"}).result.state == {"at": "2022"}
        found.reading(api, state={"at": "2023"})
        assert [asked.params["from"] for asked in api.requests] == ["2022", "2023"]


AUTHENTICATORS = """
class Fixed:
    def __init__(self, config):
        self.config = config

    def get_auth_header(self):
        return {"X-Token": self.config["token"]}

    def get_request_params(self):
        return {"key": self.config["token"]}

class Signed:
    def __init__(self, parameters):
        self.count = 0

    def __call__(self, request):
        self.count += 1
        request.headers["X-Signature"] = f"{request.method} {len(request.body)} {self.count}"
        request.url += "&signed=yes"
        return request

class Chosen:
    def __new__(cls, config, token_auth, oauth, *args, **kwargs):
        return token_auth if config["way"] == "token" else oauth

class LoggedIn:
    def __init__(self, config, login_requester):
        self.requester = login_requester
        self.logins = 0

    def get_auth_header(self):
        self.logins += 1
        answer = self.requester.send_request(request_params={"login": self.logins})
        return {"Authorization": "Bearer " + answer.json()["token"]}
"""


def _authenticated(folder: Path, authenticator: dict[str, Any], **asks: Any) -> Any:
    asks = {"authenticator": authenticator, **asks}
    return connector(folder, AUTHENTICATORS, stream(retriever=retriever(asks=asks)))


def test_an_authenticator_adds_to_headers_and_parameters(tmp_path: Path) -> None:
    found = _authenticated(tmp_path, own("Authenticator", "Fixed"))
    with Api({"/items": Reply(ITEMS)}) as api:
        assert found.reading(api).ids == [1, 2]
        (asked,) = api.requests
    assert asked.headers["x-token"] == asked.params["key"] == HIDDEN


@pytest.mark.differs("`__call__` of an authenticator")
def test_an_authenticator_signs_what_is_sent(tmp_path: Path) -> None:
    asks = {
        "http_method": "POST",
        "request_body_json": {"a": 1},
        "request_parameters": {"b": "2"},
    }
    found = _authenticated(tmp_path, own("Authenticator", "Signed"), **asks)
    with Api({"/items": [Reply(status=503), Reply(ITEMS)]}) as api:
        assert found.reading(api).ids == [1, 2]
        first, second = api.requests
    assert first.headers["x-signature"] == f"POST {len(first.body)} 1"
    assert second.headers["x-signature"] == f"POST {len(first.body)} 2"
    assert first.query == [("b", "2"), ("signed", "yes")]


@pytest.mark.parametrize(("way", "expected"), [("token", f"Bearer {HIDDEN}"), ("o", "Bearer new")])
def test_an_authenticator_chooses_among_ours(tmp_path: Path, way: str, expected: str) -> None:
    authenticator = own(
        "Authenticator",
        "Chosen",
        token_auth={"type": "BearerAuthenticator", "api_token": "{{ config['token'] }}"},
        oauth={
            "type": "OAuthAuthenticator",
            "token_refresh_endpoint": "{{ config['api'] }}/token",
            "client_id": "id",
            "client_secret": "secret",
            "refresh_token": "{{ config['token'] }}",
        },
    )
    found = _authenticated(tmp_path, authenticator)
    paths = {"/items": Reply(ITEMS), "/token": Reply({"access_token": "new", "expires_in": 99})}
    with Api(paths) as api:
        assert found.reading(api, config={"way": way}).ids == [1, 2]
        assert api.requests[-1].headers["authorization"] == expected
        assert api.paths() == ["/items"] if way == "token" else ["/token", "/items"]


def test_an_authenticator_logs_in_by_a_requester(tmp_path: Path) -> None:
    login = requester("/login", http_method="POST", request_body_json={"of": "{{ config.token }}"})
    found = _authenticated(tmp_path, own("Authenticator", "LoggedIn", login_requester=login))
    with Api({"/items": Reply(ITEMS), "/login": Reply({"token": "new"})}) as api:
        assert found.reading(api).ids == [1, 2]
        asked, items = api.requests
    assert (asked.path, asked.params, asked.json) == ("/login", {"login": "1"}, {"of": HIDDEN})
    assert items.headers["authorization"] == "Bearer new"
