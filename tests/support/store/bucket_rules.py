"""What landing files relies on in every object store."""

from __future__ import annotations

import pytest

from chronolake.errors import ObjectStoreError
from chronolake.object_store import BucketPath


def expect_created_once(bucket: BucketPath) -> None:
    path = bucket / "raw" / "a"

    assert path.create(b"first")
    assert not path.create(b"other")

    assert path.read_bytes() == b"first"


def expect_copies_that_do_not_overwrite(bucket: BucketPath) -> None:
    (bucket / "staged").create(b"new")
    (bucket / "taken").create(b"old")

    assert (bucket / "staged").copy_to(bucket / "free")
    assert not (bucket / "staged").copy_to(bucket / "taken")

    assert (bucket / "free").read_bytes() == b"new"
    assert (bucket / "taken").read_bytes() == b"old"


def expect_replaced_only_as_it_was_read(bucket: BucketPath) -> None:
    path = bucket / "a"
    path.create(b"first")
    found = path.find()
    assert found is not None

    path.replace(b"second", identity=found.identity)
    with pytest.raises(ObjectStoreError, match="changed by another process"):
        path.replace(b"third", identity=found.identity)

    assert path.read_bytes() == b"second"


def expect_listed_in_order_and_after_a_name(bucket: BucketPath) -> None:
    for name in ("x/b=1/c", "x/b=1/a", "x/b=2/a", "x/z", "y/a"):
        (bucket / name).create(b"1")

    folder = bucket / "x"
    assert [stored.path.url for stored in folder.objects()] == [
        f"{folder}/{name}" for name in ("b=1/a", "b=1/c", "b=2/a", "z")
    ]
    assert [stored.path.name for stored in folder.objects(after="b=1/c")] == ["a", "z"]
    assert sorted(place.name for place in folder.folders()) == ["b=1", "b=2"]
    assert (bucket / "missing").folders() == []


BUCKET_RULES = (
    expect_created_once,
    expect_copies_that_do_not_overwrite,
    expect_replaced_only_as_it_was_read,
    expect_listed_in_order_and_after_a_name,
)
