"""The coordinator gives the driver's state to tasks, and to no other process."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from chronolake.errors import ChronolakeError
from chronolake.source.declarative.components.custom_auth import custom_authentication
from chronolake.source.declarative.http.api_session import ApiSession
from chronolake.source.declarative.http.transport import Network, http_client
from chronolake.source.declarative.slice_files import SliceResult
from chronolake.source.declarative.spark.coordinator import Coordinator, Driver, DriverLostError
from chronolake.types import ColumnType, now_micros


class Slices:
    """Slice 1, which has not been read yet."""

    def unfinished(self, numbers: Collection[int]) -> set[int]:
        return {1}.intersection(numbers)

    def record_result(
        self, number: int, found: SliceResult | ChronolakeError, types: dict[str, ColumnType]
    ) -> bool:
        return number == 1


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with (
        http_client() as client,
        Coordinator(
            "127.0.0.1",
            ApiSession(Network(client), {}, custom=custom_authentication),
            Slices(),
            callers=2,
        ) as running,
    ):
        yield running


def test_coordinator_responds_to_tasks(coordinator: Coordinator) -> None:
    with Driver(coordinator.address) as driver:
        assert driver.unfinished([0, 1]) == {1}
        assert driver.report_result(1, SliceResult([], None), {})
        assert abs(driver.now() - now_micros()) < 60_000_000


def test_caller_without_the_secret_is_rejected(coordinator: Coordinator, tmp_path: Path) -> None:
    """Messages without the secret are not even unpickled."""
    found = tmp_path / "found"

    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (found.touch, ())

    with grpc.insecure_channel(coordinator.address.target) as channel:
        call = channel.unary_unary("/chronolake.Coordinator/Call")
        for secret in ((), (("chronolake-secret", "a guess"),)):
            with pytest.raises(grpc.RpcError) as refused:
                call(pickle.dumps(Harm()), metadata=secret, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not found.exists()
    stranger = replace(coordinator.address, secret="a guess")
    with Driver(stranger) as driver, pytest.raises(DriverLostError, match="UNAUTHENTICATED"):
        driver.now()


def test_message_that_no_task_sends_is_rejected(coordinator: Coordinator) -> None:
    with grpc.insecure_channel(coordinator.address.target) as channel:
        call = channel.unary_unary("/chronolake.Coordinator/Call")
        with pytest.raises(grpc.RpcError) as refused:
            call(bytes(20 << 20), timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_driver_is_not_called_through_a_proxy(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Driver(coordinator.address) as driver:
        assert driver.unfinished([1]) == {1}
