"""Manifests: references, inherited parameters, and all errors, each with its line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from chronolake.config import DeclarativeSource
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.connect import open_api
from chronolake.source.declarative.manifests.capabilities import max_concurrency
from chronolake.source.declarative.manifests.manifest import Manifest, find, load
from chronolake.source.declarative.models.streams import DeclarativeStream

_REAL = Path(__file__).parents[3] / "shared" / "data" / "manifests"


def manifest(folder: Path, text: str) -> Manifest:
    file = folder / "manifest.yaml"
    file.write_text(dedent(text))
    return load(file)


def stream(found: Manifest, name: str) -> DeclarativeStream:
    model = found.stream(name)
    assert isinstance(model, DeclarativeStream)
    return model


def test_references_and_parameters_are_put_in_their_places(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """
        type: DeclarativeSource
        definitions:
          requester: {type: HttpRequester, url_base: "https://a.example", http_method: GET}
          base:
            type: DeclarativeStream
            retriever:
              type: SimpleRetriever
              requester: {$ref: "#/definitions/requester", http_method: POST}
              record_selector: {extractor: {field_path: ["{{ parameters['data'] }}"]}}
        streams:
          - $ref: "#/definitions/base"
            $parameters: {name: orders, primary_key: id, path: /orders, data: items}
        """,
    )
    assert found.problems == ()
    orders = stream(found, "orders")
    assert orders.primary_key == "id"
    assert orders.retriever.requester.http_method == "POST"
    assert orders.retriever.requester.url_base == "https://a.example"
    assert orders.retriever.requester.path == "/orders"
    assert orders.retriever.record_selector.parameters["data"] == "items"


def test_every_problem_is_reported_with_its_line(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        streams:
          - type: DeclarativeStream
            name: one
            retriever:
              type: SimpleRetriever
              requester:
                type: CustomRequester
                class_name: source_x.components.Requester
              record_selector: {type: RecordSelector, extractor: {type: DpathExtractor}}
          - type: DeclarativeStream
            name: two
            retriever:
              type: SimpleRetriever
              requester: {type: HttpRequester, url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
            incremental_sync:
              type: DatetimeBasedCursor
              datetime_format: "%Y"
              start_datetime: 2024
          - type: DeclarativeStream
            name: three
            retriever:
              type: SimpleRetriever
              requester: {type: HttpRequester, url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
        """,
    )
    assert list(found.streams) == ["three"]
    reported = {(problem.line, problem.path, problem.stream) for problem in found.problems}
    assert (7, "streams[0].retriever.requester.type", "one") in reported
    assert (9, "streams[0].retriever.record_selector.extractor.field_path", "one") in reported
    assert (16, "streams[1].incremental_sync.cursor_field", "two") in reported
    assert {problem.stream for problem in found.problems} == {"one", "two"}
    (custom,) = [problem for problem in found.problems if problem.line == 7]
    assert custom.message == (
        "CustomRequester is Python code that replaces the requester, which sends and limits "
        "requests, which is not run"
    )
    with pytest.raises(ConfigurationError, match=r"line 7: streams\[0\].retriever.requester.type"):
        found.stream("one")


@pytest.mark.parametrize(
    ("left_out", "is_required"),
    [
        ("cursor_field", True),
        ("datetime_format", True),
        ("start_datetime", True),
        ("end_datetime", False),
    ],
)
def test_a_cursor_over_time_needs_some_of_its_fields(
    tmp_path: Path, left_out: str, *, is_required: bool
) -> None:
    """Source: `seeds/incremental-syncs.txt`, "Schema", but `end_datetime` is optional."""
    fields = {
        "cursor_field": "at",
        "datetime_format": "%Y-%m-%d",
        "start_datetime": "2024-01-01",
        "end_datetime": "2024-02-01",
    }
    given = "".join(f', {name}: "{text}"' for name, text in fields.items() if name != left_out)
    found = manifest(
        tmp_path,
        f"""
        streams:
          - type: DeclarativeStream
            name: one
            incremental_sync: {{type: DatetimeBasedCursor{given}}}
            retriever:
              type: SimpleRetriever
              requester: {{type: HttpRequester, url_base: "https://a.example"}}
              record_selector: {{extractor: {{field_path: []}}}}
        """,
    )
    path = f"streams[0].incremental_sync.{left_out}"
    assert [problem.path for problem in found.problems] == [path] * is_required


@pytest.mark.parametrize(
    ("token", "size", "target"),
    [
        ("request_parameter: offset", "request_parameter: offset", "request_parameter offset"),
        ("body_json: page", "body_json: [page, size]", "body_json page"),
        ("request_parameter: offset", "header: offset", None),
        ("body_json: [page, at]", "body_json: [page, size]", None),
        ("header: '{{ config.a }}'", "header: '{{ config.a }}'", None),
    ],
)
def test_a_page_token_with_the_target_of_the_page_size_is_reported(
    tmp_path: Path, token: str, size: str, target: str | None
) -> None:
    def option(text: str) -> str:
        place, name = text.split(": ")
        field = "field_path" if name.startswith("[") else "field_name"
        return f"{{type: RequestOption, inject_into: {place}, {field}: {name}}}"

    found = manifest(
        tmp_path,
        f"""\
        streams:
          - type: DeclarativeStream
            name: one
            retriever:
              type: SimpleRetriever
              requester: {{type: HttpRequester, url_base: "https://a.example"}}
              record_selector: {{extractor: {{field_path: []}}}}
              paginator:
                type: DefaultPaginator
                pagination_strategy: {{type: OffsetIncrement, page_size: 10}}
                page_token_option: {option(token)}
                page_size_option: {option(size)}
        """,
    )
    problems = [(problem.line, problem.path, problem.message) for problem in found.problems]
    message = f"the page token and the page size have the same target ({target})"
    expected = [] if target is None else [(8, "streams[0].retriever.paginator", message)]
    assert problems == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("streams: [", "is not valid YAML"),
        ("- a", "must contain a mapping"),
        ("a: &a [*a]", "is nested too deeply"),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        manifest(tmp_path, text)


@pytest.mark.differs("an unresolvable reference")
def test_a_reference_that_leads_nowhere_hides_nothing_else(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        definitions:
          unused: {$ref: "#/definitions/nothing"}
          requester: {type: HttpRequester, url_base: "#/definitions/base"}
          egg: {hen: "#/definitions/hen"}
          hen: {$ref: "#/definitions/egg"}
        streams:
          - name: one
            retriever:
              requester: "#/definitions/requester"
              record_selector: {extractor: {type: DpathExtractor}}
          - name: two
            $ref: "#/definitions/none"
            incremental_sync: {type: DatetimeBasedCursor, $ref: "#/definitions/nil"}
            transformations: {type: AddFields, fields: 5}
          - "#/definitions/nobody"
          - name: four
            retriever:
              requester: {$ref: "#/definitions/requester", path: /four}
              record_selector: {extractor: {field_path: []}}
          - name: five
            retriever:
              requester: {url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
        check: {stream_names: "#/definitions/names"}
        """,
    )

    reported = {
        (problem.line, problem.path): (problem.stream, problem.message)
        for problem in found.problems
    }
    nothing = "the reference #/definitions/{} does not exist"
    assert reported == {
        (2, "definitions.unused.$ref"): (None, nothing.format("nothing")),
        (3, "definitions.requester.url_base"): (
            None,
            f"{nothing.format('base')}; therefore, these streams cannot be read: one, four",
        ),
        (4, "definitions.egg.hen"): (None, "the reference #/definitions/hen refers to itself"),
        (12, "streams[1].$ref"): ("two", nothing.format("none")),
        (13, "streams[1].incremental_sync.$ref"): ("two", nothing.format("nil")),
        (15, "streams[2]"): (None, nothing.format("nobody")),
        (24, "check.stream_names"): (None, nothing.format("names")),
        # Problems that do not follow from them are reported, too.
        (10, "streams[0].retriever.record_selector.extractor.field_path"): (
            "one",
            "it is missing",
        ),
        (14, "streams[1].transformations.fields"): ("two", "input should be a valid list"),
    }
    assert len(found.problems) == len(reported)
    assert list(found.streams) == ["five"]
    with pytest.raises(ConfigurationError, match=r"streams\[1\].\$ref: the reference"):
        found.stream("two")
    with pytest.raises(
        ConfigurationError, match=r"definitions\.requester\.url_base: .* does not exist"
    ):
        found.stream("four")


def test_a_place_of_references_that_is_all_there_is_the_only_problem(tmp_path: Path) -> None:
    found = manifest(tmp_path, 'streams: "#/nowhere"')

    assert [(problem.line, problem.path, problem.message) for problem in found.problems] == [
        (1, "streams", "the reference #/nowhere does not exist")
    ]


def test_invalid_parameters_are_reported(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        streams:
          - name: one
            $parameters: path
            retriever:
              requester: {url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
        """,
    )

    assert [(problem.line, problem.path) for problem in found.problems] == [
        (3, "streams[0].$parameters")
    ]


def test_an_api_with_missing_secrets_is_not_requested(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        streams:
          - name: one
            retriever:
              requester: {url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
        spec:
          connection_specification: {properties: {token: "#/definitions/secret"}}
        """,
    )
    assert list(found.streams) == ["one"]
    source = DeclarativeSource(type="declarative", manifest="manifest.yaml", config={"token": "x"})

    with (
        pytest.raises(ConfigurationError, match=r"line 7: spec.connection_specification"),
        open_api(found, source, stream_names=None),
    ):
        pytest.fail("it was opened")


def test_problems_have_hints(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        streams:
          - name: one
            retriever:
              requester:
                url_base: "https://a.example"
                http_method: PSOT
                authenticator: {type: BearerAuthentcator}
              record_selector: {extractor: {type: DpathExtractor, feld_path: []}}
              paginator: {type: DefaultPaginator}
            incremental_sync:
              type: DatetimeBasedCursor
              cursor_field: at
              datetime_format: "%Y"
              start_datetime: {datetime: 1}
              end_datetime: 2024
            transformations: [{fields: []}]
          - name: two
            retriever: {type: CustomRetriever, class_name: a.b}
        check: {type: CheckStreem}
        """,
    )

    assert [(problem.line, problem.hint) for problem in found.problems] == [
        (6, "Did you mean 'POST'?"),
        (7, "Did you mean 'BearerAuthenticator'?"),
        (8, "Is 'feld_path' a misspelling of it?"),
        (9, "Add the key `pagination_strategy`."),
        (14, "The value is '1'."),
        (15, "The value is '2024'."),
        (16, "Add a `type`."),
        (18, "To read only the streams that do not need it, list them in `only`."),
        (19, "Did you mean 'CheckStream'?"),
    ]
    with pytest.raises(ConfigurationError) as refusal:
        found.stream("one")
    assert str(refusal.value.hint).startswith("Did you mean 'POST'? `chronolake check` lists")


def test_a_missing_stream_is_reported_with_the_most_similar_name(tmp_path: Path) -> None:
    found = manifest(
        tmp_path,
        """\
        streams:
          - name: orders
            retriever:
              requester: {url_base: "https://a.example"}
              record_selector: {extractor: {field_path: []}}
        """,
    )
    with pytest.raises(ConfigurationError, match="Did you mean 'orders'"):
        found.stream("Order")


def test_references_cannot_make_a_manifest_endless(tmp_path: Path) -> None:
    lines = ["a0: [x, x]"]
    lines += [f'a{n}: ["#/a{n - 1}", "#/a{n - 1}"]' for n in range(1, 40)]
    with pytest.raises(ConfigurationError, match="too large with its references resolved"):
        manifest(tmp_path, "\n".join(lines))
    deep = [f'a{n}: {{b: "#/a{n - 1}"}}' for n in range(1, 500)]
    with pytest.raises(ConfigurationError, match="too large with its references resolved"):
        manifest(tmp_path, "\n".join(["a0: {}", *deep]))


def test_a_manifest_is_found_by_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    file = tmp_path / "api" / "manifest.yaml"
    file.write_text("streams: []")
    assert find("api", beside=tmp_path) == find("api/manifest.yaml", beside=tmp_path) == file
    with pytest.raises(ConfigurationError, match="The package airbyte-source-none is not"):
        find("airbyte-source-none", beside=tmp_path)
    with pytest.raises(ConfigurationError, match=r"There is no manifest other\.yaml"):
        find("other.yaml", beside=tmp_path)


@pytest.mark.differs("requests in flight")
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("", 4),
        ("concurrency_level: {default_concurrency: 7}", 7),
        ("concurrency_level: {default_concurrency: '{{ config.workers }}'}", 9),
        ("concurrency_level: {default_concurrency: '{{ config.workers }}', max_concurrency: 5}", 5),
        ("concurrency_level: {default_concurrency: 1000}", 64),
    ],
)
def test_a_manifest_sets_the_number_of_concurrent_requests(
    tmp_path: Path, level: str, expected: int
) -> None:
    found = manifest(tmp_path, f"streams: []\n{level}")

    assert max_concurrency(found, {"workers": 9}) == expected


@pytest.mark.long
@pytest.mark.skipif(not _REAL.is_dir(), reason="the shared manifests are not here")
def test_of_real_manifests_python_code_and_contradictions_cannot_be_read() -> None:
    found = [load(file) for file in sorted(_REAL.glob("*.yaml"))]
    others = {
        (manifest.file.stem, problem.message)
        for manifest in found
        for problem in manifest.problems
        if "Python code" not in problem.message and not problem.is_warning
    }
    reported = "the page token and the page size have the same target (request_parameter offset)"
    assert others == {("postmarkapp", reported)}
    # References that are not found, keys without effect, and pages after the first one do not
    # prevent reading.
    warned = {
        manifest.file.stem
        for manifest in found
        for problem in manifest.problems
        if problem.is_warning
    }
    assert warned == {"opsgenie", "ding-connect", "finnworlds", "simplecast", "zenloop"}
    assert sum(len(manifest.streams) for manifest in found) >= 845
