"""Python components: which are allowed, and what happens if they are forbidden or fail."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import orjson
import pytest
import yaml

from chronolake.config import DeclarativeSource
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.check import check_source
from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.custom_classes import import_class
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.manifest import find, load
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.protocol import Level
from support.commands import run_words
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.connector_folders import HIDDEN, Connector, connector, own
from support.declarative.stream_reads import retriever, stream

ITEMS = {"data": [{"id": 1}, {"id": 2}]}
PLAIN = """
class Plain:
    def extract_records(self, response):
        return response.json()["data"]
"""


def extracting(component: dict[str, Any], name: str = "items", **more: Any) -> dict[str, Any]:
    return stream(name, retriever=retriever(record_selector={"extractor": component}, **more))


def check_results(found: Connector, *, allowed: bool) -> dict[str, tuple[Level, str]]:
    manifest = load(found.file, allow_components=allowed)
    with Api({"/items": Reply(ITEMS)}) as api:
        source = DeclarativeSource(
            type="declarative",
            manifest=str(found.file),
            config={"api": api.url, "token": HIDDEN},
            allow_components=allowed,
        )
        findings = list(check_source(manifest, source))
    return {
        finding.what: (finding.level, f"{finding.message} {finding.fix}") for finding in findings
    }


def test_a_stream_that_needs_code_is_reported_and_its_code_does_not_run(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + PLAIN
    parent = {"parent_key": "id", "partition_field": "of", "stream": stream("with code")}
    parent["stream"] = extracting(own("RecordExtractor", "Plain"), "parents")
    router = {"type": "SubstreamPartitionRouter", "parent_stream_configs": [parent]}
    found = connector(
        tmp_path,
        code,
        stream("without"),
        extracting(own("RecordExtractor", "Plain"), "with"),
        stream("child", retriever=retriever(partition_router=router)),
    )
    manifest = load(found.file)
    assert list(manifest.streams) == ["without"]
    assert [problem.stream for problem in manifest.problems] == ["with", "child"]
    line = manifest.problems[0].line
    assert line is not None
    assert "class_name:" in found.file.read_text().splitlines()[line - 1]
    with pytest.raises(ConfigurationError, match=r"line \d+.*allow_components: true"):
        manifest.stream("with")
    level, words = check_results(found, allowed=False)["manifest"]
    assert level is Level.WARNING
    assert "the stream child: retriever.partition_router" in words.replace("streams[2].", "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_the_project_determines_whether_code_may_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], allowed: bool
) -> None:
    connector(tmp_path / "shop", PLAIN, extracting(own("RecordExtractor", "Plain")))
    project = tmp_path / "chronolake.yml"
    with Api({"/items": Reply(ITEMS)}) as api:
        source: dict[str, Any] = {"type": "declarative", "manifest": "./shop"}
        source["config"] = {"api": api.url}
        if allowed:
            source["allow_components"] = True
        pipelines = {"shop": {"source": source}}
        project.write_text(yaml.safe_dump({"lake": {"path": "./lake"}, "pipelines": pipelines}))
        words = ("read", "shop", "items", "--json", "--project", str(tmp_path))
        code, out, err = run_words(capsys, *words)
    if allowed:
        assert code == 0
        assert orjson.loads(out)["records"] == ITEMS["data"]
    else:
        assert code != 0
        assert "only runs with `allow_components: true`" in out + err
        assert api.requests == []


def test_check_reports_for_each_stream_whether_its_classes_exist(tmp_path: Path) -> None:
    found = connector(
        tmp_path,
        PLAIN,
        extracting(own("RecordExtractor", "Plain"), "good"),
        extracting(own("RecordExtractor", "Gone"), "bad"),
    )
    findings = check_results(found, allowed=True)
    assert findings["stream good"][0] is Level.OK
    level, words = findings["stream bad"]
    assert level is Level.FAILED
    assert "names the class Gone, which" in words


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Requester", "that replaces the requester, which sends and limits requests"),
        ("Retriever", "that replaces the retriever, which reads slices page by page"),
    ],
)
def test_what_replaces_the_reader_is_refused_also_where_code_may_run(
    tmp_path: Path, kind: str, why: str
) -> None:
    component = own(kind, "Mine")
    described = stream(retriever=component if kind == "Retriever" else retriever())
    if kind == "Requester":
        described["retriever"]["requester"] = component
    found = connector(tmp_path, PLAIN, described)
    (problem,) = found.manifest.problems
    assert why in problem.message


def test_a_cursor_of_a_connectors_own_is_refused(tmp_path: Path) -> None:
    found = connector(tmp_path, PLAIN, stream(incremental_sync=own("IncrementalSync", "Mine")))
    (problem,) = found.manifest.problems
    assert "that replaces the cursor, which determines slices, state and history" in problem.message


@pytest.mark.differs("classes of components")
@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "subprocess.Popen",
        "Plain",
        "source_shop.other.Plain",
        "other.components.Plain",
        "source_shop.components.inner.Plain",
        "source_shop.components.Plain.__class__",
        "..components.Plain",
    ],
)
def test_only_a_connectors_own_classes_can_be_named(tmp_path: Path, name: str) -> None:
    found = connector(tmp_path, PLAIN)
    with pytest.raises(ConfigurationError, match="is not part of the connector"):
        import_class(name, found.file)


@pytest.mark.parametrize("name", ["Popen", "json", "number"])
def test_imported_classes_are_not_classes_of_a_module(tmp_path: Path, name: str) -> None:
    code = "import json\nfrom subprocess import Popen\nnumber = 1\n"
    found = connector(tmp_path, code)
    with pytest.raises(ConfigurationError, match=rf"names the class {name}, which"):
        import_class(f"source_declarative_manifest.components.{name}", found.file)


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (None, "components.py, which defines the class", "next to its manifest"),
        (
            "import nowhere_at_all",
            "imports nowhere_at_all, which is not installed",
            "Install the package that provides",
        ),
        ("x = (", "components.py, line 1: SyntaxError", "Correct it there"),
        ("a = 1\nb = a / 0", "components.py, line 2: ZeroDivisionError", "Correct it there"),
        ("import sys\nsys.exit(3)", "components.py, line 2: SystemExit: 3", "Correct it there"),
    ],
)
def test_a_module_that_cannot_be_imported_is_reported_with_reason_and_hint(
    tmp_path: Path, code: str | None, message: str, hint: str
) -> None:
    found = connector(tmp_path, code)
    with pytest.raises(ConfigurationError) as failure:
        import_class("source_shop.components.Plain", found.file)
    assert message in failure.value.message
    assert hint in str(failure.value.hint)


def test_without_airbyte_cdk_the_hint_names_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("airbyte_cdk", "airbyte_cdk.sources"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = connector(tmp_path, "from airbyte_cdk.sources import Source\n")
    with pytest.raises(ConfigurationError) as failure:
        import_class("source_shop.components.Plain", found.file)
    assert "imports airbyte_cdk, which is not installed" in failure.value.message
    assert "pip install 'chronolake[components]'" in str(failure.value.hint)


def test_a_failing_component_reports_its_location_and_no_secret(tmp_path: Path) -> None:
    code = """
    class Failing:
        def __init__(self, config):
            self.token = config["token"]

        def extract_records(self, response):
            for one in response.json()["data"]:
                yield one
                self.refuse()

        def refuse(self):
            raise RuntimeError(f"not with {self.token}")
    """
    found = connector(tmp_path, code, extracting(own("RecordExtractor", "Failing")))
    with Api({"/items": Reply(ITEMS)}) as api:
        failure = found.reading(api).result.failure
    assert failure is not None
    assert failure.message == (
        f"{tmp_path}/components.py, line 12: Failing.extract_records, which the stream items "
        "needs, failed with RuntimeError: not with ****"
    )
    assert failure.__cause__ is None
    assert failure.__suppress_context__


def test_a_constructor_that_fails_is_named(tmp_path: Path) -> None:
    code = """
    class Needy:
        def __init__(self, missing):
            pass
    """
    found = connector(tmp_path, code, extracting(own("RecordExtractor", "Needy")))
    with Api() as api, pytest.raises(Exception, match=r"Needy\.__init__.*TypeError.*missing"):
        found.reading(api)


def test_nested_components_are_checked_too(tmp_path: Path) -> None:
    code = """
    class Holding:
        def __init__(self, inner):
            self.inner = inner
    """
    inner = {"type": "DpathExtractor", "field_path": 7}
    described = extracting(own("RecordExtractor", "Holding", inner=inner))
    found = connector(tmp_path, code, described)
    with (
        Api() as api,
        pytest.raises(ConfigurationError, match=r"components\.Holding: .*field_path"),
    ):
        found.reading(api)


def test_what_a_class_may_not_give_is_refused(tmp_path: Path) -> None:
    code = """
    class Shrugging:
        def interpret_response(self, response):
            return None

    class Odd:
        def stream_slices(self):
            return [{"a": object()}]
    """
    handler = {"error_handler": own("ErrorHandler", "Shrugging")}
    router = own("PartitionRouter", "Odd")
    found = connector(
        tmp_path,
        code,
        stream("handled", retriever=retriever(asks=handler)),
        stream("routed", retriever=retriever(partition_router=router)),
    )
    with Api({"/items": Reply(ITEMS)}) as api:
        handled = found.reading(api, "handled").result.failure
        routed = found.reading(api, "routed").result.failure
    assert "Shrugging.interpret_response returned the response_action None" in str(handled)
    assert "Odd.stream_slices returned a value that is not a valid slice" in str(routed)


def test_records_are_what_json_has_whatever_a_class_puts_into_them(tmp_path: Path) -> None:
    code = """
    from datetime import UTC, datetime

    class Timed:
        def transform(self, record, **kwargs):
            record.update(at=datetime(2024, 1, 2, tzinfo=UTC), both=(1, 2))

    class Odd:
        def transform(self, record, **kwargs):
            record["odd"] = {1, 2}

    class Pairs:
        def get_auth_header(self):
            return [("a", "b")]
    """
    asks = {"authenticator": own("Authenticator", "Pairs")}
    found = connector(
        tmp_path,
        code,
        stream("timed", transformations=[own("Transformation", "Timed")]),
        stream("odd", transformations=[own("Transformation", "Odd")]),
        stream("pairs", retriever=retriever(asks=asks)),
    )
    with Api({"/items": Reply(ITEMS)}) as api:
        timed = found.reading(api, "timed").result.records
        odd = found.reading(api, "odd").result.failure
        pairs = found.reading(api, "pairs").result.failure
    assert timed[0] == {"id": 1, "at": "2024-01-02T00:00:00+00:00", "both": [1, 2]}
    assert "returned a record with values that JSON does not support" in str(odd)
    assert "Pairs.get_auth_header, which the stream pairs needs, returned list" in str(pairs)


@pytest.mark.differs("an instance of a component")
def test_an_instance_is_called_by_one_thread_at_a_time(tmp_path: Path) -> None:
    code = """
    import threading, time

    class Counting:
        def __init__(self):
            self.within = 0
            self.calls = 0
            self.most = 0
            self.threads = set()

        def transform(self, record, **kwargs):
            self.within += 1
            self.calls += 1
            self.most = max(self.most, self.within)
            self.threads.add(threading.get_ident())
            time.sleep(0.002)
            self.within -= 1
            record.update(most=self.most, calls=self.calls, threads=len(self.threads))
    """
    router = {
        "type": "ListPartitionRouter",
        "cursor_field": "part",
        "values": [str(number) for number in range(16)],
    }
    described = stream(
        retriever=retriever(partition_router=router),
        transformations=[own("Transformation", "Counting")],
    )
    found = connector(tmp_path, code, described)

    def slow(asked: ReceivedRequest) -> Reply:
        return Reply(ITEMS, slow=0.02)

    with Api({"/items": slow}) as api, http_client() as client:
        shared = create_api(found.manifest, {"api": api.url}, Network(client))
        reader = StreamReader(shared.manifest.stream("items"), shared)  # type: ignore[arg-type]
        with ThreadPoolExecutor(8) as pool:
            pages = pool.map(
                lambda work: list(reader.slices.read(work).pages()), list(reader.work())
            )
        records = [record for page in pages for records in page for record in records]
    assert {record["most"] for record in records} == {1}
    assert max(record["calls"] for record in records) == 32
    assert max(record["threads"] for record in records) > 1


def test_each_place_and_each_run_has_an_instance_of_its_own(tmp_path: Path) -> None:
    code = """
    class Counting:
        count = 0

        def transform(self, record, **kwargs):
            self.count += 1
            record.setdefault("counts", []).append(self.count)
    """
    twice = [own("Transformation", "Counting"), own("Transformation", "Counting")]
    found = connector(tmp_path, code, stream(transformations=twice))
    with Api({"/items": Reply(ITEMS)}) as api:
        first, second = found.reading(api), found.reading(api)
    assert [record["counts"] for record in first.result.records] == [[1, 1], [2, 2]]
    assert [record["counts"] for record in second.result.records] == [[1, 1], [2, 2]]


def test_classes_of_an_installed_package_come_from_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "source_components_shop"
    described = extracting(
        {
            "type": "CustomRecordExtractor",
            "class_name": "source_components_shop.parts.extractors.Plain",
        }
    )
    connector(package, None, described)
    (package / "parts").mkdir()
    for file in ("__init__.py", "parts/__init__.py"):
        (package / file).write_text("")
    (package / "values.py").write_text("KEY = 'data'\n")
    (package / "parts" / "extractors.py").write_text(
        dedent(
            """
            from json import JSONDecoder
            from source_components_shop.values import KEY

            class Plain:
                def extract_records(self, response):
                    return response.json()[KEY]
            """
        )
    )
    files = "".join(
        f"{path.relative_to(tmp_path)},,\n" for path in package.rglob("*") if path.is_file()
    )
    info = tmp_path / "airbyte_source_components_shop-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: airbyte-source-components-shop\nVersion: 1\n")
    (info / "RECORD").write_text(files)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = find("airbyte-source-components-shop", beside=tmp_path / "nowhere")
    with Api({"/items": Reply(ITEMS)}) as api:
        assert Connector(file).reading(api).ids == [1, 2]
    with pytest.raises(ConfigurationError, match="names the class JSONDecoder, which"):
        import_class("source_components_shop.parts.extractors.JSONDecoder", file)
    with pytest.raises(ConfigurationError, match="is not part of the connector"):
        import_class("json.decoder.JSONDecoder", file)


def test_streams_of_a_template_have_components_too(tmp_path: Path) -> None:
    found = connector(tmp_path, PLAIN)
    text = found.file.read_text()
    found.file.write_text(
        text.replace("streams: []\n", "")
        + dedent(
            """
            dynamic_streams:
              - type: DynamicDeclarativeStream
                name: templates
                stream_template:
                  type: DeclarativeStream
                  name: ""
                  retriever:
                    type: SimpleRetriever
                    requester:
                      {type: HttpRequester, url_base: "{{ config['api'] }}", path: items}
                    record_selector:
                      extractor:
                        type: CustomRecordExtractor
                        class_name: source_declarative_manifest.components.Plain
                components_resolver:
                  type: ConfigComponentsResolver
                  stream_config: {type: StreamConfig, configs_pointer: [names]}
                  components_mapping:
                    - type: ComponentMappingDefinition
                      field_path: [name]
                      value: "{{ components_values['name'] }}"
            """
        )
    )
    names = {"names": [{"name": "first"}, {"name": "second"}]}
    refused = load(found.file)
    assert refused.dynamic == ()
    assert [problem.stream for problem in refused.problems] == ["templates"]
    with Api({"/items": Reply(ITEMS)}) as api:
        assert found.reading(api, "second", config=names).ids == [1, 2]
