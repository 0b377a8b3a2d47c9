"""Projects that `chronolake init --from` proposes: a chronolake.yml for a source that exists.

The source is recognized (`origin`), a pipeline is proposed for it (`database`, `connectors`,
`files`), its streams are listed and checked (`review`), and the text is written (`document`).
Secrets are never part of the text: it references environment variables.
"""

from chronolake.scaffold.origin import Request
from chronolake.scaffold.project_file import ProposedFile, key_words, propose
from chronolake.scaffold.proposal import ProposedPipeline, ProposedStream, Variable

__all__ = [
    "ProposedFile",
    "ProposedPipeline",
    "ProposedStream",
    "Request",
    "Variable",
    "key_words",
    "propose",
]
