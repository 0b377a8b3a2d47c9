"""The memory of a run over a stream."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from chronolake.source.declarative.connect import create_api
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.manifests.capabilities import primary_key_of
from chronolake.source.declarative.manifests.manifest import parse, to_mapped
from chronolake.source.declarative.slice_files import SliceFiles
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.stream_run import Run
from chronolake.source.records.pending_files import Part, PendingFiles
from chronolake.source.records.schema import Shape
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.declarative.stream_reads import option, retriever, stream

_ROWS = 500
_PAGES = {
    "type": "DefaultPaginator",
    "page_token_option": option("page"),
    "pagination_strategy": {"type": "PageIncrement", "page_size": _ROWS},
}


def test_memory_is_a_pages_and_not_the_streams(tmp_path: Path) -> None:
    few, many = (_most_memory(tmp_path / str(pages), pages) for pages in (5, 60))
    assert many < 1.3 * few


def _most_memory(folder: Path, pages: int) -> int:
    """Return the peak memory, in bytes, of reading a stream of `pages` pages into files."""
    records = [{"id": number, "text": f"{number} " * 40} for number in range(_ROWS)]
    # Two pages take turns: the same page twice in a row would be an error.
    bodies = [orjson.dumps({"data": page}) for page in (records, records[::-1])]
    nothing = orjson.dumps({"data": []})

    def answer(asked: ReceivedRequest) -> Reply:
        api.requests.clear()
        page = int(asked.params.get("page", 0))
        return Reply(bodies[page % 2] if page < pages else nothing)

    described: Any = stream(primary_key="id", retriever=retriever(paginator=_PAGES))
    manifest = parse(to_mapped({"streams": [described]}), folder / "manifest.yaml")
    found: Any = manifest.stream("items")
    folder.mkdir()
    with Api() as api, http_client() as client:
        api.on("/items", answer)
        shared = create_api(manifest, {"api": api.url}, Network(client))
        waiting, _ = PendingFiles.recover(folder / "spool")
        files = SliceFiles(waiting.folder, primary_key_of(found), Shape({}))
        run = Run(StreamReader(found, shared), files, waiting, shared.session)
        tracemalloc.start()
        try:
            for _ in run.read(1):
                assert sum(part.rows for part in waiting.parts) == pages * _ROWS
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("journal", [b"", b"{", b'{"parts": [], "state": {"a": 1}}'])
def test_what_a_machine_without_power_has_left_is_read_again(
    tmp_path: Path, journal: bytes
) -> None:
    (tmp_path / "journal.json").write_bytes(journal)
    (tmp_path / "half.arrow").write_bytes(b"ARROW1")
    waiting, _ = PendingFiles.recover(tmp_path)
    assert not waiting.parts
    assert not list(tmp_path.glob("*.arrow"))


def test_a_part_that_is_not_whole_is_read_again(tmp_path: Path) -> None:
    part = Part(tmp_path / "a.arrow", (), 1, 100)
    part.file.write_bytes(b"ARROW1")
    PendingFiles(tmp_path, [part], 100).note({"state": None})
    waiting, state = PendingFiles.recover(tmp_path)
    assert (waiting.parts, state) == ([], None)
