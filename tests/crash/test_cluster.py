"""On a cluster, nothing depends on the driver's memory, imports or working folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from support.crash.server_process import configure, serve
from support.oracle import ACTIVE, END, KEEP, MILLISECOND, START, TMAX
from support.server.caller import HISTORY, SYNCED
from support.server.sent_rows import Batch, SentTable

_T: Final = 1_704_067_200_000_000
_HOUR: Final = 3_600_000_000


@pytest.mark.long
def test_executors_of_their_own_write_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    monkeypatch.setenv("SPARK_HOME", str(Path(spec.origin).parent))
    lake = tmp_path / "lake"
    configure(lake, master="local-cluster[2,1,1024]")
    with serve(lake, tmp_path) as server:
        live = SentTable(server.caller, "live", ["id*:LONG", "a:STRING", SYNCED]).create()
        model = live.oracle()
        rows = [{"id": key, "a": f'say "{key}",\n', "_fivetran_synced": _T} for key in range(5000)]
        for batch in (
            Batch(replace=rows, files=8),
            Batch(
                update=[row | {"a": KEEP, "_fivetran_synced": _T + 1} for row in rows[:2000]],
                delete=rows[4000:],
                files=3,
            ),
        ):
            live.send(live.request(batch))
            model.write(**batch.rows)
        assert not live.differences(model)

        columns = ["id*:LONG", "a:STRING", "b:STRING", *HISTORY]
        history = SentTable(server.caller, "history", columns).create()
        versions = history.oracle()
        for hour in range(3):
            start = _T + hour * _HOUR
            times = {START: start, END: TMAX, ACTIVE: True, "_fivetran_synced": start}
            changed = [
                {"id": key, "a": f"{hour}", "b": f"{hour}" if hour < 1 else KEEP, **times}
                for key in range(hour, 3000)
            ]
            kind = "replace" if hour < 1 else "update"
            batch = Batch(
                earliest=[{"id": row["id"], START: start - MILLISECOND} for row in changed[:100]],
                **{kind: changed},
                delete=[
                    row | {"a": None, "b": None, START: None, END: start + 1000}
                    for row in changed[-500:]
                ],
                files=4,
            )
            request = history.request(batch)
            for _ in range(2):
                history.send(request)
                versions.write(**batch.rows)
        assert not history.differences(versions)
