"""The steps of a Dockerfile without a container engine, on a copy of this machine's files.

The copy is an overlay in a mount namespace: the steps change nothing outside. This machine takes
the place of the base image, so that it has to be Debian with Python as well.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")
#: Mounts the overlay at $1, and keeps the namespace until its input ends.
_OVERLAY: Final = """\
set -e
mount -t tmpfs -o size=4g none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" none "$1/root"
for folder in proc dev sys; do mount --rbind "/$folder" "$1/root/$folder"; done
echo ready
read -r _ || true
"""


def can_overlay(folder: Path) -> bool:
    """Return whether this user may create overlays, on a machine with Debian's packages."""
    if shutil.which("apt-get") is None or shutil.which("setpriv") is None:
        return False
    done = subprocess.run(
        [*_MOUNTS, "sh", "-c", _OVERLAY, "sh", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    found = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, rest in found]


@dataclass
class Image:
    """A folder that has the content of an image.

    Attributes:
        root: the folder.
        holder: the process that keeps its mounts.
        environment: the image's variables.
        user: the user and group of its processes.
        folder: their working folder.
        command: its program with arguments.
    """

    root: Path
    holder: subprocess.Popen[str]
    environment: dict[str, str] = field(default_factory=dict)
    user: tuple[str, str] = ("0", "0")
    folder: str = "/"
    command: list[str] = field(default_factory=list)

    def build(self, dockerfile: str, context: Path, *, variables: Mapping[str, str]) -> None:
        """Run the steps; variables are those of the build only."""
        for word, rest in instructions(dockerfile):
            if word == "ENV":
                name, _, value = rest.partition("=")
                self.environment[name] = value
            elif word == "USER":
                user, _, group = rest.partition(":")
                self.user = user, group
            elif word == "WORKDIR":
                self.folder = rest
                self.shell(f"mkdir -p {rest}")
            elif word in {"ENTRYPOINT", "CMD"}:
                self.command += json.loads(rest)
            elif word == "RUN":
                self.shell(rest, variables={**self.environment, **variables})
            elif word == "COPY" and not rest.startswith("--from="):
                # A stage of a build continues with the files of the one before.
                *sources, target = rest.split()
                for source in sources:
                    self.copy(context / source, target)
            else:
                assert word in {"FROM", "ARG", "COPY"}, word

    def copy(self, source: Path, target: str) -> None:
        """Copy a file into a folder, or the content of a folder."""
        if source.is_dir():
            self.shell(f"mkdir -p {target} && cp -r {shlex.quote(str(source))}/. {target}")
        else:
            self.shell(f"mkdir -p {target} && cp {shlex.quote(str(source))} {target}")

    def shell(self, script: str, *, variables: Mapping[str, str] | None = None) -> str:
        """Run a script as root, and return what it prints."""
        done = subprocess.run(
            [*self._inside(), "/bin/sh", "-c", script],
            env={"PATH": os.environ["PATH"], "HOME": "/root", **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def start(
        self, *words: str, variables: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Run the image's program without privileges; words replace its default arguments."""
        user, group = self.user
        program = self.command[:-1] if words else self.command
        with log.open("wb") as output:
            return subprocess.Popen(
                [
                    *self._inside(),
                    *("setpriv", "--reuid", user, "--regid", group, "--clear-groups"),
                    *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
                    *("env", "--chdir", self.folder, *program, *words),
                ],
                env={**self.environment, "TINI_SUBREAPER": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def make_read_only(self, *writable: str) -> None:
        """Let nothing but these folders be written, which are empty volumes of the user."""
        user, group = self.user
        for folder in writable:
            options = f"uid={user},gid={group},mode=0755"
            self._mount(f"mount -t tmpfs -o {options} none {self.root}{folder}")
        self._mount(f"mount -o remount,ro {self.root}")

    def _mount(self, command: str) -> None:
        subprocess.run([*self._namespace(), "sh", "-c", command], check=True)

    def _namespace(self) -> Sequence[str]:
        return ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--")

    def _inside(self) -> Sequence[str]:
        # The image's PATH need not contain it.
        chroot = shutil.which("chroot") or "/usr/sbin/chroot"
        return (*self._namespace(), chroot, str(self.root))


@contextmanager
def image_of_this_machine(folder: Path) -> Iterator[Image]:
    """Yield an image with the files of this machine, whose Python every user may run."""
    holder = subprocess.Popen(
        [*_MOUNTS, "sh", "-c", _OVERLAY, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        image = Image(folder / "root", holder)
        python = Path(sys.executable).resolve()
        parents = [str(parent) for parent in python.parents if str(parent) != "/"]
        image.shell(f"chmod o+x {' '.join(parents)}")
        # What is on this machine, but not in the base image.
        image.shell("rm -rf /var/lib/chronolake /opt/chronolake /build /project")
        image.environment["PATH"] = f"{python.parent}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield image
    finally:
        holder.communicate()
