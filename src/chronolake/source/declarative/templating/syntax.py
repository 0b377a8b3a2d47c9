"""What a template's text says, before it is evaluated."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.sandbox import SandboxedEnvironment

#: What is warned of is a matter of the whole process.
_reading = threading.Lock()


def parsed(environment: SandboxedEnvironment, text: str) -> nodes.Template:
    """What a template says.

    Python warns of escapes in it that are none, as regular expressions have them: nobody who reads
    a manifest can do anything about that, and where warnings are errors it could not be read.

    Args:
        environment: whose syntax it has.
        text: the template.

    Raises:
        jinja2.TemplateSyntaxError: it is none.
    """
    with _reading, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return environment.parse(text)
