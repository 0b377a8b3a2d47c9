"""Reports: records that an API makes ready first, and that are downloaded then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from chronolake.source.declarative.language.base import SEVERAL, Component
from chronolake.source.declarative.language.custom import CustomErrorHandler, CustomRecordExtractor
from chronolake.source.declarative.language.errorhandling import CompositeErrorHandler, ErrorHandler
from chronolake.source.declarative.language.paging import Paginator
from chronolake.source.declarative.language.records import (
    CombinedExtractor,
    Decoder,
    DpathExtractor,
    Extractor,
    RecordSelector,
)
from chronolake.source.declarative.language.requests import HttpRequester

if TYPE_CHECKING:
    from chronolake.source.declarative.language.streams import PartitionRouter

#: What only the requester of a stream's pages can be told to do.
_OF_PAGES = frozenset({"REDUCE_PAGE_SIZE", "SPLIT_REQUEST_WINDOW"})


class AsyncJobStatusMap(Component):
    """What an API calls the states of a report."""

    type: Literal["AsyncJobStatusMap"] = "AsyncJobStatusMap"
    running: list[str]
    completed: list[str]
    failed: list[str]
    timeout: list[str]
    skipped: list[str] | None = None

    @model_validator(mode="after")
    def _each_means_one_thing(self) -> Self:
        named = [
            *self.running,
            *self.completed,
            *self.failed,
            *self.timeout,
            *(self.skipped or ()),
        ]
        for status, times in Counter(named).items():
            if times > 1:
                raise ValueError(f"the status {status!r} is named {times} times")
        return self


class ResponseToFileExtractor(Component):
    """The download is CSV, maybe packed, in which some words stand for what is missing."""

    type: Literal["ResponseToFileExtractor"]
    preserve_na_values: bool = False


DownloadExtractor = Annotated[
    DpathExtractor | CombinedExtractor | ResponseToFileExtractor | CustomRecordExtractor,
    Field(discriminator="type"),
]


class AsyncRetriever(Component):
    """Records of reports that are ordered, waited for and downloaded."""

    type: Literal["AsyncRetriever"]
    record_selector: RecordSelector
    status_mapping: AsyncJobStatusMap
    status_extractor: Extractor
    download_target_extractor: Extractor | None = None
    download_extractor: DownloadExtractor | None = None
    creation_requester: HttpRequester
    polling_requester: HttpRequester
    polling_job_timeout: int | str | None = None
    failed_retry_wait_time_in_seconds: int | str | None = None
    download_target_requester: HttpRequester | None = None
    download_requester: HttpRequester
    download_paginator: Paginator | None = None
    abort_requester: HttpRequester | None = None
    delete_requester: HttpRequester | None = None
    partition_router: Annotated[tuple[PartitionRouter, ...], SEVERAL] = ()
    decoder: Decoder | None = None
    download_decoder: Decoder | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.download_target_requester and not self.download_target_extractor:
            raise ValueError("a download_target_requester needs a download_target_extractor")
        for name, value in self:
            if isinstance(value, HttpRequester):
                wrong = sorted(_actions_of(value.error_handler) & _OF_PAGES)
                if wrong:
                    raise ValueError(f"the {name} of a report knows no action {wrong[0]}")
        return self


def _actions_of(handler: ErrorHandler | None) -> set[str]:
    if handler is None or isinstance(handler, CustomErrorHandler):
        return set()
    if isinstance(handler, CompositeErrorHandler):
        return set().union(*map(_actions_of, handler.error_handlers))
    return {one.action for one in handler.response_filters or () if one.action}
