"""Reports are ordered, polled and downloaded as the reference does."""

from __future__ import annotations

import gzip
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.check import Result, read
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http import decoders, response
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import Manifest, parse, to_mapped
from chronolake.source.declarative.records import extractors
from chronolake.source.declarative.stream_reader import SliceReader, Work
from chronolake.source.declarative.stream_slice import StreamSlice
from support.declarative.apis import Api, ReceivedRequest, Reply

RUNNING = Reply({"status": "running"})
FAILED = Reply({"status": "failed"})
LATE = Reply({"status": "late"})
READY = Reply({"status": "ready", "urls": ["/files/1"]})
ROWS = Reply({"id": 1})
MANIFEST = Path("manifest.yaml")


class Clock:
    """A clock that skips waits, and records them."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def now(self) -> float:
        return sum(self.waits)


class Desk:
    """A test API of reports, and the means to read it."""

    def __init__(self, api: Api, client: httpx.Client) -> None:
        self.api = api
        self.client = client
        self.clock = Clock()
        self.network: dict[str, Any] = {}
        api.on("/reports", Reply({"id": 7}))
        api.on("/reports/7", READY)
        api.on("/files/1", ROWS)
        api.on("/reports/7/abort", Reply())
        api.on("/reports/7/delete", Reply())

    def requester(self, path: str, **more: Any) -> dict[str, Any]:
        return {"type": "HttpRequester", "url_base": self.api.url, "path": path, **more}

    def manifest(self, *, stream: dict[str, Any] | None = None, **more: Any) -> Manifest:
        at_once = more.pop("at_once", None)
        retriever = {
            "type": "AsyncRetriever",
            "status_mapping": {
                "running": ["running"],
                "completed": ["ready"],
                "failed": ["failed"],
                "timeout": ["late"],
                "skipped": ["nothing"],
            },
            "status_extractor": {"type": "DpathExtractor", "field_path": ["status"]},
            "download_target_extractor": {"type": "DpathExtractor", "field_path": ["urls"]},
            "creation_requester": self.requester("/reports", http_method="POST"),
            "polling_requester": self.requester("/reports/{{ creation_response['id'] }}"),
            "download_requester": self.requester("{{ download_target }}"),
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": ["of no interest"]},
            },
            **more,
        }
        described = {"type": "DeclarativeStream", "name": "items", "retriever": retriever}
        content = {"streams": [described | (stream or {})]}
        if at_once is not None:
            content["max_concurrent_async_job_count"] = at_once
        return parse(to_mapped(content), MANIFEST)

    def reader(self, manifest: Manifest) -> SliceReader:
        fields = {"sleep": self.clock.sleep, "now": self.clock.now, **self.network}
        api = create_api(manifest, {"minutes": 1, "places": 2}, Network(self.client, **fields))
        stream: Any = manifest.stream("items")
        return SliceReader(stream, api, {})

    def read(self, state: Any = None, **more: Any) -> Result:
        manifest = self.manifest(**more)
        fields = {"sleep": self.clock.sleep, "now": self.clock.now, **self.network}
        api = create_api(manifest, {"minutes": 1}, Network(self.client, **fields))
        return read(manifest.stream("items"), api, state)

    def asking(self, kind: str) -> dict[str, Any]:
        path = "/reports/{{ creation_response['id'] }}/" + kind
        return {f"{kind}_requester": self.requester(path, http_method="POST")}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with Api() as api, http_client() as client:
        yield Desk(api, client)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """Record the temporary files that are created."""
    made: list[IO[bytes]] = []
    make = tempfile.TemporaryFile

    def noted() -> IO[bytes]:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    return made


def _ids(result: Result) -> list[Any]:
    assert result.failure is None
    return [record["id"] for record in result.records]


# ---------------------------------------------------------------------- until it is ready


def test_job_is_polled_every_five_seconds_until_it_is_ready(desk: Desk) -> None:
    desk.api.on("/reports/7", RUNNING, RUNNING, READY)

    assert _ids(desk.read()) == [1]
    assert desk.clock.waits == [5, 5]
    assert desk.api.paths() == ["/reports", *["/reports/7"] * 3, "/files/1"]


def test_job_that_fails_twice_is_read_the_third_time(desk: Desk) -> None:
    desk.api.on("/reports/7", FAILED, FAILED, READY)

    assert _ids(desk.read()) == [1]
    assert desk.clock.waits == [5, 5]
    assert desk.api.paths().count("/reports") == 3


def test_failed_job_is_created_again_after_the_configured_wait(desk: Desk) -> None:
    desk.api.on("/reports", Reply(status=404), Reply({"id": 7}))
    desk.api.on("/reports/7", FAILED, READY)

    wait = "{{ config['minutes'] * 60 }}"
    assert _ids(desk.read(failed_retry_wait_time_in_seconds=wait)) == [1]
    # A refused order does not count as a failed report.
    assert desk.clock.waits == [5, 60]


@pytest.mark.parametrize("outcome", [FAILED, LATE])
def test_job_that_fails_three_times_is_an_error(desk: Desk, outcome: Reply) -> None:
    desk.api.on("/reports/7", outcome)

    result = desk.read(**desk.asking("abort"))

    assert isinstance(result.failure, SourceError)
    assert result.records == []
    assert desk.api.paths().count("/reports") == 3
    # A job that failed by itself is not aborted.
    assert desk.api.paths().count("/reports/7/abort") == (3 if outcome is LATE else 0)


def test_reason_of_a_refused_job_is_reported(desk: Desk) -> None:
    desk.api.on("/reports", Reply(status=400))

    failure = desk.read().failure

    assert failure is not None
    assert "3 attempts" in failure.message
    assert "status 400" in failure.message
    assert desk.api.paths() == ["/reports"] * 3


def test_job_that_times_out_is_aborted_and_created_again(desk: Desk) -> None:
    # A minute of polls, one every five seconds, and then one of the second order.
    desk.api.on("/reports/7", *[RUNNING] * 13, READY)

    more = {"polling_job_timeout": "{{ config['minutes'] }}", **desk.asking("abort")}
    assert _ids(desk.read(**more)) == [1]
    assert desk.api.paths()[13:] == [
        "/reports/7",
        "/reports/7/abort",
        "/reports",
        "/reports/7",
        "/files/1",
    ]


def test_an_abort_that_fails_changes_nothing(desk: Desk) -> None:
    desk.api.on("/reports/7", LATE, READY)
    desk.api.on("/reports/7/abort", Reply(status=404))

    assert _ids(desk.read(**desk.asking("abort"))) == [1]


def test_empty_job_is_read(desk: Desk) -> None:
    desk.api.on("/reports/7", Reply({"status": "nothing"}))

    assert _ids(desk.read(**desk.asking("delete"))) == []
    assert desk.api.paths() == ["/reports", "/reports/7"]


@pytest.mark.differs("unknown states of a job")
@pytest.mark.parametrize(
    "answer", [Reply({"status": "lost"}), Reply({}), Reply(b"<html>"), Reply(status=404)]
)
def test_unknown_job_status_is_an_error(desk: Desk, answer: Reply) -> None:
    desk.api.on("/reports/7", answer)

    result = desk.read(**desk.asking("abort"))

    assert isinstance(result.failure, SourceError)
    assert desk.api.paths() == ["/reports", "/reports/7", "/reports/7/abort"]


@pytest.mark.parametrize("answer", [Reply([{"id": 7}]), Reply(b""), Reply(b"7")])
def test_response_to_a_job_creation_must_be_an_object(desk: Desk, answer: Reply) -> None:
    desk.api.on("/reports", answer)

    failure = desk.read().failure

    assert failure is not None
    assert "not a JSON object" in failure.message


def test_ignored_error_of_a_job_is_an_error(desk: Desk) -> None:
    handler = {
        "type": "DefaultErrorHandler",
        "response_filters": [
            {"type": "HttpResponseFilter", "action": "IGNORE", "http_codes": [404]}
        ],
    }
    desk.api.on("/reports/7", Reply(status=404))
    poll = desk.requester("/reports/7", error_handler=handler)

    failure = desk.read(polling_requester=poll).failure

    assert failure is not None
    assert "the status of the job" in failure.message


# ---------------------------------------------------------------------- what requests see


def test_requests_of_a_job_see_its_earlier_responses(desk: Desk) -> None:
    desk.api.on("/reports", Reply({"id": 7}, headers={"X-Ticket": "t1"}))
    desk.api.on("/reports/7", Reply({"status": "ready", "urls": ["/files/1"], "of": "poll"}))
    sees = {
        "ticket": "{{ creation_response['headers']['x-ticket'] }}",
        "sent": "{{ creation_response.request.headers['X-Kind'] }}",
        "asked": "{{ creation_response['request'].method }}",
        "shop": "{{ stream_slice['shop'] }}",
    }
    later = {
        **sees,
        "of": "{{ polling_response['of'] }}",
        "url": "{{ polling_response.request.url }}",
        "target": "{{ download_target }}",
    }
    token = {"type": "BearerAuthenticator", "api_token": "s3cret"}

    result = desk.read(
        partition_router={
            "type": "ListPartitionRouter",
            "cursor_field": "shop",
            "values": ["north", "south"],
        },
        creation_requester=desk.requester(
            "/reports",
            http_method="POST",
            authenticator=token,
            request_headers={"X-Kind": "all"},
            request_body_json={"shop": "{{ stream_slice.shop }}"},
        ),
        polling_requester=desk.requester(
            "/reports/7",
            request_parameters={
                **sees,
                "secret": "{{ creation_response.request.headers['Authorization'] }}",
            },
        ),
        download_requester=desk.requester("/files/1", request_parameters=later),
        **desk.asking("delete"),
    )

    assert _ids(result) == [1, 1]
    assert [request.json for request in desk.api.requests if request.path == "/reports"] == [
        {"shop": "north"},
        {"shop": "south"},
    ]
    (_, polled, loaded, removed, *_) = desk.api.requests
    reported = {"ticket": "t1", "sent": "all", "asked": "POST", "shop": "north"}
    assert polled.params == reported
    assert loaded.params["url"].startswith(f"{desk.api.url}/reports/7?ticket=t1")
    assert {name: loaded.params[name] for name in (*reported, "of", "target")} == {
        **reported,
        "of": "poll",
        "target": "/files/1",
    }
    assert removed.path == "/reports/7/delete"


def test_slice_is_not_injected_into_job_requests(desk: Desk) -> None:
    option = {"type": "RequestOption", "inject_into": "request_parameter", "field_name": "since"}
    cursor = {
        "type": "DatetimeBasedCursor",
        "cursor_field": "at",
        "datetime_format": "%Y-%m-%d",
        "start_datetime": "2024-01-01",
        "end_datetime": "2024-01-04",
        "step": "P2D",
        "cursor_granularity": "P1D",
        "start_time_option": option,
    }
    desk.api.on("/files/1", Reply({"id": 1, "at": "2024-01-02"}))

    result = desk.read(stream={"incremental_sync": cursor})

    assert _ids(result) == [1, 1]
    assert result.state == {"at": "2024-01-02"}
    assert not any(request.query for request in desk.api.requests)


def test_download_target_can_be_requested(desk: Desk) -> None:
    desk.api.on("/reports/7", Reply({"status": "ready", "place": "attic"}))
    desk.api.on("/where/attic", Reply({"urls": ["/files/1", "/files/2"]}))
    desk.api.on("/files/2", Reply([{"id": 2}, {"id": 3}]))

    where = desk.requester("/where/{{ polling_response['place'] }}")
    assert _ids(desk.read(download_target_requester=where)) == [1, 2, 3]


def test_without_a_target_there_is_one_download(desk: Desk) -> None:
    download = desk.requester("/files/1{{ download_target }}")

    found = desk.read(download_target_extractor=None, download_requester=download)

    assert _ids(found) == [1]


def test_polling_is_never_cached(desk: Desk) -> None:
    desk.api.on("/reports/7", RUNNING, READY)
    poll = desk.requester("/reports/7", use_cache=True)

    assert _ids(desk.read(polling_requester=poll)) == [1]


# ---------------------------------------------------------------------- downloads


def test_download_may_have_pages(desk: Desk) -> None:
    desk.api.on(
        "/files/1",
        Reply({"rows": [{"id": 1}, {"id": 2}], "next": "b"}),
        Reply({"rows": [{"id": 3}]}),
    )

    result = desk.read(
        download_extractor={"type": "DpathExtractor", "field_path": ["rows"]},
        download_paginator={
            "type": "DefaultPaginator",
            "page_token_option": {
                "type": "RequestOption",
                "inject_into": "request_parameter",
                "field_name": "page",
            },
            "pagination_strategy": {
                "type": "CursorPagination",
                "cursor_value": "{{ response['next'] }}",
                "stop_condition": "{{ not response['next'] }}",
            },
        },
    )

    assert _ids(result) == [1, 2, 3]
    assert [request.params for request in desk.api.requests if request.path == "/files/1"] == [
        {},
        {"page": "b"},
    ]


def test_records_are_filtered_and_transformed_as_others_are(desk: Desk) -> None:
    desk.api.on("/files/1", Reply(b"ID,Kind\n1,a\n2,b\n"))

    result = desk.read(
        stream={"transformations": [{"type": "KeysToLower"}]},
        record_selector={
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": []},
            "record_filter": {"type": "RecordFilter", "condition": "{{ record['Kind'] == 'b' }}"},
        },
        download_decoder={"type": "CsvDecoder"},
    )

    assert result.records == [{"id": "2", "kind": "b"}]


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_some_words_of_a_csv_mean_null(desk: Desk, is_packed: bool, is_kept: bool) -> None:
    table = '\ufeffid,note,more\n1,NA,"a\nb"\n2,x\0y,\n3\n'.encode()
    desk.api.on("/files/1", Reply(gzip.compress(table) if is_packed else table))

    result = desk.read(
        download_extractor={"type": "ResponseToFileExtractor", "preserve_na_values": is_kept}
    )

    assert result.failure is None
    assert result.records == [
        {"id": "1", "note": "NA" if is_kept else None, "more": "a\nb"},
        {"id": "2", "note": "xy", "more": None},
        {"id": "3", "note": None, "more": None},
    ]


def test_csv_row_with_more_values_than_the_header_is_an_error(desk: Desk) -> None:
    desk.api.on("/files/1", Reply(b"id\n1,2\n"))

    failure = desk.read(download_extractor={"type": "ResponseToFileExtractor"}).failure

    assert isinstance(failure, SourceError)


def test_download_may_have_several_extractors(desk: Desk) -> None:
    desk.api.on("/files/1", Reply({"a": [{"id": 1}], "b": [{"id": 2}]}))
    paths = [{"type": "DpathExtractor", "field_path": [name]} for name in "ab"]

    found = desk.read(download_extractor={"type": "CombinedExtractor", "extractors": paths})

    assert _ids(found) == [1, 2]


def test_jobs_are_deleted_after_they_were_read(desk: Desk) -> None:
    desk.api.on("/reports/7/delete", Reply(status=404))

    # A report that cannot be deleted has been read all the same.
    assert _ids(desk.read(**desk.asking("delete"))) == [1]
    assert desk.api.paths()[-2:] == ["/files/1", "/reports/7/delete"]


def test_interrupted_download_is_retried_without_duplicates(
    desk: Desk, files: list[IO[bytes]]
) -> None:
    lines = b'{"id": 1}\n{"id": 2}\n'
    desk.api.on("/files/1", Reply(lines, cut=12), Reply(lines))

    assert _ids(desk.read(download_decoder={"type": "JsonlDecoder"})) == [1, 2]
    assert [file.closed for file in files] == [True, True]


def test_a_download_that_is_refused_fails_and_is_not_deleted(desk: Desk) -> None:
    desk.api.on("/files/1", Reply({"reason": "gone"}, status=404))

    assert isinstance(desk.read(**desk.asking("delete")).failure, SourceError)
    assert desk.api.paths()[-1] == "/files/1"


# ---------------------------------------------------------------------- memory


def test_download_may_be_larger_than_other_responses(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, files: list[IO[bytes]]
) -> None:
    monkeypatch.setattr(extractors, "_BATCH", 100)
    monkeypatch.setattr(decoders, "MOST_DECOMPRESSED", 5_000)
    desk.network["limit"] = 1_000
    table = b"id\n" + b"".join(b"%d\n" % number for number in range(2_000))
    packed = {"type": "GzipDecoder", "decoder": {"type": "CsvDecoder"}}

    desk.api.on(
        "/files/1",
        Reply(gzip.compress(table)),
        Reply(gzip.compress(table), headers={"Content-Encoding": "gzip"}),
        Reply(table),
    )
    for _ in range(3):
        reader = desk.reader(desk.manifest(download_decoder=packed))
        pages = [len(page) for page in reader.read(Work(StreamSlice(), 0)).pages()]
        assert pages == [100] * 20
    assert all(file.closed for file in files)


def test_format_that_is_read_as_a_whole_has_to_fit_into_memory(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "MAX_BODY_IN_MEMORY", 100)
    desk.api.on("/files/1", Reply([{"id": 1}] * 20))

    failure = desk.read().failure

    assert failure is not None
    assert "as a whole" in failure.message


def test_line_without_an_end_is_an_error(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_LONGEST_LINE", 20_000)
    desk.api.on("/files/1", Reply(b'{"id": "' + b"1" * 50_000))

    failure = desk.read(download_decoder={"type": "JsonlDecoder"}).failure

    assert failure is not None
    assert "A line of a response" in failure.message


def test_abandoned_download_leaves_no_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, files: list[IO[bytes]]
) -> None:
    monkeypatch.setattr(extractors, "_BATCH", 1)
    desk.api.on("/files/1", Reply(b'{"id": 1}\n{"id": 2}\n'))
    reader = desk.reader(desk.manifest(download_decoder={"type": "JsonlDecoder"}))

    pages = reader.read(Work(StreamSlice(), 0)).pages()
    assert next(pages) == [{"id": 1}]
    pages.close()  # type: ignore[attr-defined]

    assert [file.closed for file in files] == [True]


# ---------------------------------------------------------------------- several at a time


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(None, 1), (0, 1), (3, 3), ("{{ config['places'] }}", 2), ("{{ 'many' }}", 1)],
)
def test_number_of_concurrent_jobs_is_limited(desk: Desk, at_once: Any, expected: int) -> None:
    lock, open_now, most, number = threading.Lock(), 0, 0, 0

    def order(asked: ReceivedRequest) -> Reply:
        nonlocal open_now, most, number
        with lock:
            open_now, number = open_now + 1, number + 1
            most = max(most, open_now)
            return Reply({"id": number})

    def poll(asked: ReceivedRequest) -> Reply:
        nonlocal open_now
        time.sleep(0.05)
        with lock:
            open_now -= 1
        return READY

    desk.api.on("/reports", order)
    for job in range(1, 7):
        desk.api.on(f"/reports/{job}", poll)
    reader = desk.reader(desk.manifest(at_once=at_once))

    def all_of(number: int) -> list[Any]:
        return list(reader.read(Work(StreamSlice({"n": number}), 0)).pages())

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(all_of, range(6))) == [[[{"id": 1}]]] * 6
    assert most == expected


def test_wait_for_a_job_slot_ends_when_the_read_is_cancelled(desk: Desk) -> None:
    cancelled = desk.network["cancelled"] = threading.Event()
    desk.api.on("/reports/7", RUNNING)
    desk.network["sleep"] = lambda _: time.sleep(0.01)
    reader = desk.reader(desk.manifest(**desk.asking("abort")))

    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(lambda: list(reader.read(Work(StreamSlice(), 0)).pages())) for _ in range(2)
        ]
        time.sleep(0.1)
        cancelled.set()
        for future in waiting:
            with pytest.raises(SourceError, match="cancelled"):
                future.result(timeout=30)
    assert desk.api.paths().count("/reports") == 1


# ---------------------------------------------------------------------- manifests


def test_job_status_has_one_meaning(desk: Desk) -> None:
    words = {"running": ["a"], "completed": ["b"], "failed": ["a"], "timeout": []}

    (problem,) = desk.manifest(status_mapping=words).problems

    assert "'a' is listed 2 times" in problem.message


def test_target_requester_needs_a_target_extractor(desk: Desk) -> None:
    where = desk.requester("/where")

    (problem,) = desk.manifest(
        download_target_requester=where, download_target_extractor=None
    ).problems

    assert "needs a download_target_extractor" in problem.message


@pytest.mark.parametrize("action", ["REDUCE_PAGE_SIZE", "SPLIT_REQUEST_WINDOW"])
def test_job_requesters_do_not_support_page_actions(desk: Desk, action: str) -> None:
    plain = {
        "type": "DefaultErrorHandler",
        "response_filters": [{"type": "HttpResponseFilter", "action": action, "http_codes": [400]}],
    }
    handler = {"type": "CompositeErrorHandler", "error_handlers": [plain]}
    poll = desk.requester("/reports/7", error_handler=handler)

    (problem,) = desk.manifest(polling_requester=poll).problems

    assert f"the polling_requester does not support the action {action}" in problem.message


@pytest.mark.parametrize("minutes", ["{{ 'long' }}", "{{ 0 - 1 }}", "-3"])
def test_job_timeout_is_a_number(desk: Desk, minutes: str) -> None:
    with pytest.raises(ConfigurationError, match="polling_job_timeout"):
        desk.read(polling_job_timeout=minutes)


def test_decoder_without_templates_cannot_be_paginated(desk: Desk) -> None:
    paginator = {
        "type": "DefaultPaginator",
        "pagination_strategy": {"type": "PageIncrement", "page_size": 1},
    }
    with pytest.raises(ConfigurationError, match="cannot be paginated"):
        desk.read(download_paginator=paginator, download_decoder={"type": "CsvDecoder"})
