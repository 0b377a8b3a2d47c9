"""The files of deploy/ are valid, and agree with each other and with the configuration."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from chronolake.config import Project, load_project
from chronolake.location import scheme_of

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
_COMPOSE_SCHEMA: Final = "github.com/compose-spec/compose-go/v2@v2.16.2"
_KUBERNETES: Final = ("1.30", "1.37")
_NAME: Final = re.compile(r"(?<!\$)\$\{(\w+)")


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
    return found


def _manifests() -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kubernetes" / "chronolake.yaml").read_text()
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


def _pod() -> dict[str, Any]:
    found: dict[str, Any] = _manifests()["StatefulSet"]["spec"]["template"]["spec"]
    return found


def _load(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Load a configuration with a value for each variable that it names."""
    for name in _NAME.findall(text):
        monkeypatch.setenv(name, "postgresql://reader@db/shop" if name.endswith("DSN") else name)
    file = folder / "chronolake.yml"
    file.write_text(text)
    return load_project(file)


def _lines(file: str) -> dict[str, str]:
    """Return the packages of a lock file with their versions."""
    lines = (ROOT / file).read_text().splitlines()
    pinned = [line.removesuffix(" \\") for line in lines if not line.startswith(" ")]
    return dict(line.partition(" ;")[0].split("==", 1) for line in pinned)


def test_the_compose_file_fits_its_specification() -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("the schema is in a module of Go, which is not installed")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [go, "mod", "download", "-json", _COMPOSE_SCHEMA],
            capture_output=True,
            check=True,
            cwd=folder,
        )
    schema = Path(json.loads(done.stdout)["Dir"]) / "schema" / "compose-spec.json"
    jsonschema.validate(_compose(), json.loads(schema.read_text()))


@pytest.mark.parametrize("version", _KUBERNETES)
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    manifests = _manifests()
    assert set(manifests) == {"ServiceAccount", "ConfigMap", "Service", "StatefulSet"}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_containers_run_up_without_privileges() -> None:
    image = (ROOT / "Dockerfile").read_text()
    service, pod = _compose()["services"]["chronolake"], _pod()
    (container,) = pod["containers"]

    assert 'ENTRYPOINT ["tini", "--", "chronolake"]' in image
    assert 'CMD ["up"]' in image
    assert container["args"] == ["up"]
    user = re.search(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert user is not None
    security = pod["securityContext"]
    assert [str(security["runAsUser"]), str(security["runAsGroup"])] == list(user.groups())
    assert security["runAsNonRoot"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_configurations_are_valid_and_their_secrets_are_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, pod = _compose()["services"]["chronolake"], _pod()
    (container,) = pod["containers"]
    text = (DEPLOY / "compose" / "chronolake.yml").read_text()
    names = set(_NAME.findall(text))
    composed = _load(text, tmp_path, monkeypatch)
    on_kubernetes = _load(
        _manifests()["ConfigMap"]["data"]["chronolake.yml"], tmp_path, monkeypatch
    )

    assert names <= set(service["environment"])
    assert all(value.startswith("${") for value in service["environment"].values())
    example = (DEPLOY / "compose" / "env.example").read_text()
    given = dict(line.split("=", 1) for line in example.splitlines() if not line.startswith("#"))
    assert set(given) == set(service["environment"])
    assert container["envFrom"] == [{"secretRef": {"name": "chronolake"}}]
    # Kubernetes adds variables with our prefix otherwise, which are not settings.
    assert pod["enableServiceLinks"] is False
    for project in (composed, on_kubernetes):
        assert scheme_of(project.lake.warehouse_location) == "s3"
        assert project.lake.path.is_relative_to("/var/lib/chronolake")
        # Beyond the pod's own address, which probes reach.
        assert project.up.health == "0.0.0.0:8788"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"ui": 8787, "health": 8788}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert pod["terminationGracePeriodSeconds"] > on_kubernetes.up.grace_seconds
    assert service["stop_grace_period"] == "60s"
    assert composed.up.grace_seconds < 60


def test_the_image_has_the_pinned_versions() -> None:
    pinned, image = _lines("requirements.lock"), _lines("deploy/requirements.lock")
    assert {name: pinned[name] for name in image} == image
    assert {"pyspark", "grpcio", "httpx", "psycopg-binary", "starlette"} <= set(image)
    assert not {"pytest", "ruff", "uv"} & set(image)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (DEPLOY / "systemd" / "chronolake.service").read_text()
    command = re.search(r"^ExecStart=(\S+) up ", unit, re.MULTILINE)
    assert command is not None
    # Programs have to exist.
    file = tmp_path / "chronolake.service"
    file.write_text(unit.replace(command[1], "/bin/true"))

    done = subprocess.run(
        [analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
