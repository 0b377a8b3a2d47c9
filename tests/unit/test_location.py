"""Locations: one folder under many spellings, and the folders inside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronolake.identity import version_of
from chronolake.location import as_url, is_inside, is_same_place, local_path, plain

_NAMES = st.text("ab. %#?é", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
_PATHS = st.lists(_NAMES, max_size=4).map(lambda names: "/" + "/".join(names))


@given(_PATHS, _PATHS)
def test_a_location_is_inside_as_in_the_file_system_however_it_is_spelled(
    path: str, root: str
) -> None:
    expected = Path(path).is_relative_to(root)
    for location in (path, f"file:{path}", f"file://{path}", as_url(path)):
        for folder in (root, f"{root}/", f"file://{root}"):
            assert is_inside(location, folder) is expected
        assert plain(location) == str(Path(path))
        assert local_path(location) == Path(path)
        assert not is_inside(location, f"s3://bucket{root}")
    assert is_inside(f"s3a://bucket{path}", f"s3://bucket{root}") is (
        path == root or path.startswith(f"{root.rstrip('/')}/")
    )


def test_links_are_followed_and_steps_up_counted(tmp_path: Path) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    (real / "tables").mkdir(parents=True)
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    assert is_same_place(str(link), str(real))
    assert is_inside(f"{link}/tables/x", str(real))
    assert is_inside(f"{real}/tables/x", str(link))
    assert not is_inside(f"{real}/../other/x", str(real))
    assert not is_inside(f"{real}-2/x", str(real))
    (real / "away").symlink_to(other)
    assert is_inside(f"file://{os.path.relpath(other, '/')}", str(other)) is False


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("00012-1f0c9f0e-7c1c-4b7e-8a51-0c5c3d9f6a10.metadata.json", 12),
        ("s3://b/t/metadata/00000-1f0c9f0e.gz.metadata.json", 0),
        ("snap-12-1-1f0c9f0e.avro", None),
        ("v3.metadata.json", None),
    ],
)
def test_a_metadata_file_has_a_number(name: str, number: int | None) -> None:
    assert version_of(name) == number
