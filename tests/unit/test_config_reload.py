"""A chronolake.yml that is changed while it is in use."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from chronolake.config import WatchedProject, load_project
from chronolake.errors import ChronolakeError

_PIPELINE = "pipelines: {{{}: {{source: {{type: data_lake_v2, path: x, org: X}}}}}}\n"


def test_a_project_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "chronolake.yml"
    file.write_text(_PIPELINE.format("one"))
    complaints: list[ChronolakeError] = []
    read = partial(load_project, file)
    watched = WatchedProject(read(), read, complaints.append)

    first = watched.current()
    assert watched.current() is first, "an unchanged file is not read again"

    file.write_text(_PIPELINE.format("two "))
    assert list(watched.current().pipelines) == ["two"]

    # While the file is invalid or missing, the last valid one applies; it is reported once.
    file.write_text("pipelines: {three: {sauce: {}}}\n")
    assert list(watched.current().pipelines) == ["two"]
    assert list(watched.current().pipelines) == ["two"]
    assert len(complaints) == 1
    assert "unknown key 'pipelines.three.sauce'" in str(complaints[0])
    assert "Did you mean 'pipelines.three.source'?" in str(complaints[0].hint)
    file.unlink()
    assert list(watched.current().pipelines) == ["two"]
    assert len(complaints) == 2

    # Editors replace the old file with a new one, with its own times.
    new = tmp_path / "new"
    new.write_text(_PIPELINE.format("four"))
    os.utime(new, ns=(1, 1))
    new.rename(file)
    assert list(watched.current().pipelines) == ["four"]
    assert len(complaints) == 2
