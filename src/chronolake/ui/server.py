"""The server of the web UI: listens on an address until it is stopped."""

from __future__ import annotations

import os
import signal
import socket
import threading
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronolake.env import UI_TOKEN
from chronolake.errors import ConfigurationError
from chronolake.ui.security import TOKEN, Guard, is_loopback, new_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chronolake.config import LakeConfig

_SHORTEST_TOKEN: Final = 16
_LAST_PORT: Final = 65_535
#: In bytes, a request's line and headers. A link may contain a record's long key.
_LONGEST_HEAD: Final = 64 * 1024
#: Seconds for open requests to finish after a signal.
_GRACE_SECONDS: Final = 1


@dataclass(frozen=True)
class UiOptions:
    """Options of the server.

    Attributes:
        host: the address to listen on.
        port: TCP port; 0 selects a free one.
        browser: whether a browser is opened.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    browser: bool = False


@dataclass(frozen=True)
class Address:
    """The address of the web UI.

    Attributes:
        host: the address to listen on.
        port: the TCP port.
        token: the token that a link needs, or None.
    """

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """Return the URL of the web UI, including the token if it is needed."""
        # Browsers cannot open the wildcard address, so the machine's name is used instead.
        named = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104
        host = f"[{named}]" if ":" in named else named
        query = f"?{TOKEN}={self.token}" if self.token else ""
        return f"http://{host}:{self.port}/{query}"


def serve(
    config: LakeConfig,
    options: UiOptions,
    tell: Callable[[Address], None],
    *,
    project: Path | None = None,
) -> None:
    """Serve a lake's web UI until SIGINT or SIGTERM.

    Args:
        config: the lake, which does not need to exist yet.
        options: host, port and browser.
        tell: called as soon as the server accepts requests.
        project: the chronolake.yml whose pipelines fill the lake, or None.

    Raises:
        ConfigurationError: the address is not available, or the token is too short.
    """
    import uvicorn  # noqa: PLC0415 - not needed for `--help`

    from chronolake.ui.app import application  # noqa: PLC0415 - the same
    from chronolake.ui.site import Site  # noqa: PLC0415 - the same

    listening = _bound(options)
    # A name's address is known after binding, because a resolver may return any address.
    bound = str(listening.getsockname()[0])
    try:
        token = _token(bound)
    except ConfigurationError:
        listening.close()
        raise
    address = Address(options.host, int(listening.getsockname()[1]), token)
    guard = Guard(token, is_loopback(bound), f"chronolake-ui-{address.port}")
    site = Site(config, project)
    server = uvicorn.Server(
        uvicorn.Config(
            application(site, guard),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    # uvicorn raises a signal again after it has stopped; all work is done at that point.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # The socket queues connections before the server accepts them, so the address can be reported
    # now.
    tell(address)
    if options.browser:
        threading.Thread(target=webbrowser.open, args=[address.url], daemon=True).start()
    threading.Thread(target=_prepared, daemon=True).start()
    try:
        server.run(sockets=[listening])
    finally:
        site.close()


def _prepared() -> None:
    """Import what the first page needs, in the background."""
    import pyiceberg.catalog.rest  # noqa: PLC0415
    import pyiceberg.table  # noqa: F401, PLC0415


def _token(host: str) -> str | None:
    given = os.environ.get(UI_TOKEN)
    if given is not None and len(given) < _SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{UI_TOKEN} is too short for a token.",
            hint=f"Give it at least {_SHORTEST_TOKEN} characters, or leave it out: a token is "
            "made then.",
        )
    return given or (None if is_loopback(host) else new_token())


def _bound(options: UiOptions) -> socket.socket:
    """Return a socket that listens on the configured address."""
    if not 0 <= options.port <= _LAST_PORT:
        raise ConfigurationError(f"{options.port} is no TCP port.", hint="Give 0 to 65535.")
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as failure:
        raise ConfigurationError(
            f"{options.host} is no address.", hint="Give --host an address of this machine."
        ) from failure
    family, kind, protocol, _, place = found[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
        bound.listen(128)
    except OSError as failure:
        bound.close()
        raise ConfigurationError(
            f"Port {options.port} of {options.host} cannot be listened on: {failure.strerror}.",
            hint="Choose another port with --port; 0 takes any free one.",
        ) from failure
    return bound
