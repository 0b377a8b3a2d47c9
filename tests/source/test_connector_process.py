"""The process of a connector ends with the command that started it, and so do its files."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from chronolake.pipeline.streams import source_of
from chronolake.source.protocol import ChangeSource, StreamFailure
from support.connectors import Shop, stream
from support.waiting import TIMEOUT, wait_until

#: A tap with a child; both of them may ignore SIGTERM.
_TAP: Final = """
import os, signal, sys, time
if {ignores}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    with open("config-path.new", "w") as file:
        file.write(sys.argv[2])
    os.rename("config-path.new", "config-path")
else:
    with open("child.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("child.new", "child")
time.sleep(600)
"""


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


_UNIGNORED = """
import signal
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from chronolake.__main__ import main
main()
"""


def _start(folder: Path, tap: str) -> subprocess.Popen[bytes]:
    """Run a command that starts a tap."""
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "tap.py").write_text(tap)
    source = {
        "type": "singer",
        "command": [sys.executable, str(folder / "tap.py")],
        "config": {"token": "hidden-word"},
    }
    content = {"lake": {"path": "lake"}, "pipelines": {"shop": {"source": source}}}
    (folder / "chronolake.yml").write_text(yaml.safe_dump(content))
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "CHRONOLAKE_ENGINE": "off"}
    # The signals are ignored if this process was started so, such as by nohup.
    command = [sys.executable, "-c", _UNIGNORED, "discover", "shop", "--project", str(folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.sampled
@pytest.mark.parametrize("ignores", [False, True], ids=["heeds", "ignores"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_stopped_command_leaves_nothing(
    tmp_path: Path, number: signal.Signals, *, ignores: bool
) -> None:
    process = _start(tmp_path, _TAP.format(ignores=ignores))
    wait_until(
        lambda: (tmp_path / "config-path").exists() and (tmp_path / "child").exists(),
        "the connector is not in this state",
    )
    config = Path((tmp_path / "config-path").read_text())
    child = int((tmp_path / "child").read_text())
    assert b"hidden-word" in config.read_bytes()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    process.send_signal(number)
    assert process.wait(TIMEOUT) == -number
    if number is signal.SIGKILL:
        os.killpg(os.getpgid(child), signal.SIGKILL)
        # What a killed process has left is removed by the next one.
        assert config.exists()
        assert _start(tmp_path, "raise SystemExit(1)").wait(TIMEOUT)
    else:
        wait_until(lambda: not _is_running(child), "the connector is not in this state")
    assert list((tmp_path / "tmp").glob("chronolake-connector-*")) == []


def test_a_connector_gets_only_configured_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("OTHER_TOKEN", "of-another-connector")
    monkeypatch.setenv("LC_TIME", "C.UTF-8")
    monkeypatch.setenv("https_proxy", "http://proxy.example:1")
    monkeypatch.setenv("SSL_CERT_FILE", "/certificates")
    shop = Shop(tmp_path)
    read = """
        expected = {"LC_TIME": "C.UTF-8", "https_proxy": "http://proxy.example:1", "OWN": "set",
                    "SSL_CERT_FILE": "/certificates"}
        assert {name: os.environ.get(name) for name in expected} == expected, os.environ
        assert {"PATH", "HOME"} <= os.environ.keys(), os.environ
        assert not {"PYTHONPATH", "OTHER_TOKEN", "JAVA_HOME"} & os.environ.keys(), os.environ
        print(f"pin {config['pin_token']}, page {config['page']}, {os.environ['OWN_TOKEN']}")
        record("orders", id=1, note="a")
    """
    shop.airbyte(
        [stream("orders")],
        read,
        config={"pin_token": 73919, "page": 1234},
        environment={"OWN": "set", "OWN_TOKEN": "hidden-word"},
    )
    source = source_of(shop.project, "shop")
    assert isinstance(source, ChangeSource)
    read_all = list(source.read(shop.lake, {"orders": None}, full_refresh=True))
    assert not any(isinstance(found, StreamFailure) for found in read_all), read_all
    output = capsys.readouterr().out
    assert "page 1234" in output
    assert "73919" not in output
    assert "hidden-word" not in output


def test_the_folder_of_a_running_command_is_kept(tmp_path: Path) -> None:
    process = _start(tmp_path, _TAP.format(ignores=False))
    try:
        wait_until((tmp_path / "config-path").exists, "the connector has not begun")
        config = Path((tmp_path / "config-path").read_text())
        assert _start(tmp_path, "raise SystemExit(1)").wait(TIMEOUT)
        assert config.exists()
    finally:
        process.terminate()
        process.wait(TIMEOUT)
    assert not config.parent.exists()
