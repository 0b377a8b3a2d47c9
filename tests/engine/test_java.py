"""A process cancels its own jobs in the JVM of an engine, and waits for that a bounded time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from chronolake.session import JAVA_OPTIONS, java_home, settings_of_java, start_settings
from support.lakes import SPARK
from support.waiting import TIMEOUT

#: Starts a JVM as an engine does.
_START: Final = """\
import json, os, signal, sys, threading, time
from pathlib import Path
from chronolake.config import load
from chronolake.engine.java import EngineJava
from chronolake.lake import Lake, spark_conf
from chronolake.session import java_home, settings_of_java

spark = json.loads(sys.argv[1])
configs = [load(Path(name).absolute(), overrides=spark) for name in ("one", "other")]
settings = settings_of_java(configs[0].spark.master, spark_conf(configs[0]), java_home())
java = EngineJava.start(settings, java_home(), is_private=True)
print(java.process.pid, flush=True)
java.address()
"""
_DO_NOT_RESPOND: Final = """
os.kill(java.process.pid, signal.SIGSTOP)
java.cancel_jobs(["tag"], seconds=1)
"""
#: Two lakes have a job of some minutes each, and those of one are cancelled.
_CANCEL: Final = """
java.share()
lakes = [Lake.open(config.path, config=config) for config in configs]
errors = [None, None]

def run(number):
    try:
        lakes[number].sql("SELECT count(DISTINCT hash(a.id, b.id)) "
                          "FROM range(3000000) a, range(30000) b").collect()
    except Exception as error:
        errors[number] = str(error)

def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)

threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
for thread in threads:
    thread.start()
tracker = lakes[0].spark.sparkContext.statusTracker()
wait_for(lambda: len(tracker.getActiveJobsIds()) == 2)
others_run = []
for number in (0, 1):
    # A query begins several jobs.
    while threads[number].is_alive():
        lakes[number].cancel_jobs()
        threads[number].join(0.2)
    others_run.append(threads[1].is_alive())
java.stop()
print(*others_run, *["cancelled" in error for error in errors])
"""
#: Forks use the JVM one after the other, and others count the objects that it keeps for them.
_USE_AND_END: Final = """
from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from chronolake.engine.java import release
from chronolake.session import connect_to_java

def use():
    java.share()
    lake = Lake.open(configs[0].path, config=configs[0])
    frame = lake.spark.range(10).selectExpr("id AS a", "id + 1 AS b")
    frame.collect()
    held.append(frame)

def count():
    connect_to_java(java.address())
    server = JavaObject("GATEWAY_SERVER", SparkContext._gateway._gateway_client)
    print(server.getGateway().getBindings().size(), flush=True)

held = []
for action in (use, count, use, use, count):
    pid = os.fork()
    if pid == 0:
        action()
        release()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
java.stop()
"""


def _run(
    script: str, folder: Path, conf: dict[str, str] = SPARK
) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, because a process has one JVM; end its JVM."""
    spark = json.dumps({"spark.master": "local[2]", "spark.conf": conf})
    done = subprocess.run(
        [sys.executable, "-c", f"{_START}{script}", spark],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    with suppress(ProcessLookupError):
        os.kill(int(done.stdout.split()[0]), signal.SIGKILL)
    return done


@pytest.mark.parametrize(("options", "is_used"), [({}, True), ({JAVA_OPTIONS: "-Da=b"}, False)])
def test_a_jvm_that_stays_has_a_collector_for_that(
    options: dict[str, str], *, is_used: bool
) -> None:
    settings = settings_of_java("local[2]", options, java_home())

    assert ("-XX:+UseParallelGC" in settings.for_java[JAVA_OPTIONS]) is is_used
    # Another process uses the JVM, whatever its own would be started with.
    assert settings.fingerprint == start_settings("local[2]", options, java_home()).fingerprint


@pytest.mark.long
def test_a_jvm_that_does_not_respond_keeps_nobody_waiting(tmp_path: Path) -> None:
    # With the options of a real engine, which those of tests replace.
    done = _run(_DO_NOT_RESPOND, tmp_path, conf={})

    assert done.returncode == -signal.SIGALRM, done.stderr


@pytest.mark.long
def test_only_the_jobs_of_a_lake_are_cancelled(tmp_path: Path) -> None:
    done = _run(_CANCEL, tmp_path)

    assert done.stdout.split()[1:] == ["True", "False", "True", "True"], done.stderr


@pytest.mark.long
def test_the_jvm_keeps_nothing_of_forks_that_have_ended(tmp_path: Path) -> None:
    done = _run(_USE_AND_END, tmp_path)

    _, before, after = map(int, done.stdout.split())
    assert after == before, done.stderr
