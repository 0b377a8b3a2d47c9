"""A Maven registry of Spark's jars on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chronolake import jars
from chronolake.session import java_home

_SETTINGS = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root="{url}"/></resolvers>
</ivysettings>"""


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def create_folder_of(mirror: Path, jar: jars.Jar) -> Path:
    """Create the folder of a jar in a registry, and return the path of the jar."""
    group, artifact, version = jar.coordinates.split(":")
    folder = mirror.joinpath(*group.split("."), artifact, version)
    folder.mkdir(parents=True)
    return folder / jar.file_name


def fill(mirror: Path, *schemes: str) -> tuple[jars.Jar, ...]:
    """Add the jars that this process uses to a registry, and return them.

    Args:
        mirror: the registry's folder.
        schemes: the object stores whose clients are added.
    """
    found = (*jars.required(), *jars.clients(schemes))
    for jar, file in zip(found, jars.paths(java_home(), schemes=schemes), strict=True):
        create_folder_of(mirror, jar).symlink_to(file)
    return found


def write_ivy_settings(url: str, folder: Path) -> Path:
    """Write an Ivy settings file for a registry, and return its path."""
    file = folder / "ivy.xml"
    file.write_text(_SETTINGS.format(url=url), encoding="utf-8")
    return file
