"""A chronolake.yml that is changed while it is in use."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from chronolake.config import WatchedProject, load_project
from chronolake.engine import client
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


def _mount(folder: Path, version: str) -> None:
    """Change a folder as Kubernetes changes the volume of a ConfigMap."""
    before = list(folder.glob("..20*"))
    new = folder / f"..2026_{version}"
    new.mkdir(parents=True)
    (new / "chronolake.yml").write_text(_PIPELINE.format(version))
    link = folder / "..data_tmp"
    link.symlink_to(new.name)
    link.rename(folder / "..data")
    if before:
        shutil.rmtree(before[0])
    else:
        (folder / "chronolake.yml").symlink_to("..data/chronolake.yml")


def test_every_change_of_a_mounted_config_map_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    _mount(folder, "one")
    read = partial(load_project, folder / "chronolake.yml")
    watched = WatchedProject(read(), read)
    for version in ("two", "three"):
        _mount(folder, version)
        assert list(watched.current().pipelines) == [version]
        # Commands find the engine that was started before.
        assert client.place_of(["sync", "--project", str(folder)], {}) == folder / "chronolake.yml"
    assert watched.current().file == folder / "chronolake.yml"
