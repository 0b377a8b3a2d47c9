"""Comparison of reads with what was sent: records, states, and where a second read begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from chronolake.source.declarative.stream_reader import StreamReader, Work
from support.declarative.mockapi import clock, record_generator, templates
from support.declarative.mockapi.server import Served
from support.declarative.mockapi.stream_data import Offer


@dataclass
class StreamRead:
    """One read: its slices, each with the records that were read and those that were sent."""

    reader: StreamReader
    slices: list[tuple[Work, list[Any], list[Served]]]
    is_whole: bool


def differences(offer: Offer, work: Work, came: list[Any], sent: list[Any]) -> list[str]:
    """Return how the read records differ from those that were sent."""
    stream = offer.stream
    is_filtered = bool(stream["retriever"]["record_selector"].get("record_filter"))
    if len(came) != len(sent):
        return [] if is_filtered and came else [f"{len(sent)} records were sent, {len(came)} came"]
    change = Change.of(stream)
    faults = []
    for record, other in zip(came, sent, strict=True):
        wanted = {key.lower() if change.lowers else key: value for key, value in other.items()}
        for key, value in wanted.items():
            if key not in change.touched and record.get(key) != value:
                faults.append(f"{key} is {record.get(key)!r} instead of {value!r}")
        faults += [
            f"{key} came from nowhere" for key in record.keys() - wanted.keys() - change.added
        ]
        faults += [f"{key} was not added" for key in change.added - record.keys()]
        faults += [f"{key} was not removed" for key in change.removed & record.keys()]
        faults += _unlike_told(change, offer, work, record, other)
    return faults


def _unlike_told(
    change: Change, offer: Offer, work: Work, found_value: Any, other: Any
) -> list[str]:
    """Return how added values differ from their templates; templates with the time are skipped."""
    part = dict(work.slice)
    reported = dict.fromkeys(("stream_slice", "stream_partition", "stream_interval"), part)
    variables = {**reported, "record": other, "config": offer.config}
    faults = []
    for name, template in change.templates.items():
        if "now_utc" not in template:
            value = templates.value_of(template, variables)
            if found_value.get(name) != value:
                faults.append(f"{name} is {found_value.get(name)!r} instead of {value!r}")
    return faults


@dataclass(frozen=True)
class Change:
    """How transformations change the keys of records.

    Attributes:
        touched: the keys that change.
        added: keys that every record has afterwards, sent or not.
        removed: keys that are removed.
        lowers: whether all keys become lower case.
        templates: templates of the added values, by their keys.
    """

    touched: set[str]
    added: set[str]
    removed: set[str]
    lowers: bool
    templates: dict[str, str]

    @classmethod
    def of(cls, stream: Mapping[str, Any]) -> Change:
        found = cls(set(), set(), set(), False, {})
        for step in stream.get("transformations") or ():
            if step["type"] == "AddFields":
                found.templates.update(
                    (field["path"][0], str(field["value"]))
                    for field in step["fields"]
                    if len(field["path"]) == 1
                    and not (field.get("value_type") or step.get("condition"))
                )
                found.added.update(str(field["path"][0]) for field in step["fields"])
                found.removed.difference_update(found.added)
            elif step["type"] == "RemoveFields":
                alone = {str(path[0]) for path in step["field_pointers"] if len(path) == 1}
                found.touched.update(str(path[0]) for path in step["field_pointers"])
                found.removed.update(alone)
                found.added.difference_update(alone)
            elif step["type"] == "KeysToLower":
                found = replace(found, lowers=True)
            else:
                raise NotImplementedError(step["type"])
        found.touched.update(found.added)
        return found


def _latest_in_slice(
    slice_values: Mapping[str, Any], records: list[Any], offer: Offer
) -> datetime | None:
    """Return the latest time of a slice's records, at most the slice's end."""
    cursor = dict(offer.cursor or {})
    name, forms = cursor["cursor_field"], clock.forms_of(cursor)
    times = [clock.read(record_generator.at(record, [name]), forms) for record in records]
    latest = max((at for at in times if at is not None), default=None)
    end_name = str(cursor.get("partition_field_end") or "end_time")
    end = clock.read(slice_values.get(end_name), [cursor["datetime_format"]])
    return latest if latest is None or end is None else min(latest, end)


def unlike(state: Mapping[str, Any], reading: StreamRead, offer: Offer) -> list[str]:
    """Return faults if a state is not the greatest cursor value that has been read.

    A record that is later than its slice moves the state to the slice's end at most.
    """
    cursor = dict(offer.cursor or {})
    form = str(cursor["datetime_format"])
    name = cursor["cursor_field"]
    by_partition: dict[bytes, list[datetime]] = {}
    partitions = {}
    for work, records, _ in reading.slices:
        at = _latest_in_slice(work.slice.cursor_slice, records, offer)
        times = by_partition.setdefault(work.slice.partition_key, [])
        times += [] if at is None else [at]
        partitions[work.slice.partition_key] = work.slice.partition
    if not any(by_partition.values()):
        return ["no record has a time"]
    greatest = max(at for times in by_partition.values() for at in times)
    # Chronolake also stores how late the latest record beyond a slice is.
    state = {key: value for key, value in state.items() if key != "latest_record"}
    if not offer.stream["retriever"].get("partition_router"):
        wanted = {name: clock.written(greatest, form)}
        return [] if state == wanted else [f"the state is {state} instead of {wanted}"]
    faults = []
    if reading.is_whole:
        wanted = {name: clock.written(greatest, form)}
        if state.get("state") != wanted:
            faults.append(f"the state of all is {state.get('state')} instead of {wanted}")
    kept = {
        str(sorted(partition_state["partition"].items(), key=str)): partition_state["cursor"]
        for partition_state in state.get("states", ())
    }
    for key, times in by_partition.items() if not state["use_global_cursor"] else ():
        at = max(times, default=None)
        found = kept.get(str(sorted(partitions[key].items(), key=str)))
        if at is not None and found != {name: clock.written(at, form)}:
            faults.append(f"the state of {partitions[key]} is {found} instead of {at}")
    return faults


def not_from_there(state: Mapping[str, Any], second: StreamRead, offer: Offer) -> list[str]:
    """Return faults if a second read does not begin where the state is."""
    cursor = dict(offer.cursor or {})
    forms, name = [cursor["datetime_format"]], cursor["cursor_field"]
    begin = str(cursor.get("partition_field_start") or "start_time")
    kept = {
        str(sorted(partition_state["partition"].items(), key=str)): partition_state["cursor"][name]
        for partition_state in state.get("states", ())
    }
    begun: dict[bytes, str] = {}
    for work, _, served in second.slices:
        if work.slice.partition_key in begun:
            continue
        begun[work.slice.partition_key] = key = str(sorted(work.slice.partition.items(), key=str))
        reported = kept.get(key) or (state.get("state") or state).get(name)
        at = clock.read(reported, forms)
        asked = served[0].bounds[0] if served and served[0].bounds[0] else None
        asked = asked or clock.read(work.slice[begin], forms)
        if at is None or asked is None:
            return [f"the state {reported} is no time, or {work.slice} has none"]
        earlier = timedelta(days=62) if cursor.get("lookback_window") else timedelta()
        if not at - earlier <= asked <= at:
            return [f"the second reading begins at {asked}, and the state is at {at}"]
    return []
