"""Requests that go by one of several tokens, whichever has calls left.

Which one that is, `quotas` knows for all who read the API. Here is what each of them does by
itself: to find the quota that a request counts for, to wait, and to read what answers tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.exchange.authenticating import PLACE, Authentication, credential
from chronolake.source.declarative.exchange.budget import Matcher
from chronolake.source.declarative.exchange.injection import Injection
from chronolake.source.declarative.exchange.quotas import Report, moment, whole
from chronolake.source.declarative.exchange.requesting import encoded
from chronolake.source.declarative.exchange.spans import seconds_of
from chronolake.source.declarative.templating.templates import as_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.exchange.answers import Answer
    from chronolake.source.declarative.exchange.network import Network
    from chronolake.source.declarative.exchange.quotas import Quotas
    from chronolake.source.declarative.exchange.requesting import Encoded, Request
    from chronolake.source.declarative.language.quotas import (
        RateLimitedMultipleTokenAuthenticator,
        TokenQuota,
    )

_WHERE: Final = "an authenticator's quotas"
#: Seconds after which another token is tried, in place of waiting for the one that is spent.
_ROTATION: Final = 0.1
#: A server's clock may be late, so it is not asked anew at once.
_LEAST_WAIT: Final = 5.0


def credentials_of(
    component: RateLimitedMultipleTokenAuthenticator, config: Mapping[str, Any]
) -> list[Injection]:
    """The credentials of each token, in the order of the tokens.

    Raises:
        ConfigurationError: there are none, or a template fails.
    """
    context = {"config": config, "parameters": component.parameters}
    if isinstance(component.tokens, str):
        texts = credential(component.tokens, context).split(component.token_delimiter or ",")
    else:
        texts = [credential(template, context) for template in component.tokens]
    tokens = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not tokens:
        raise ConfigurationError(
            "The configuration has no tokens for the authenticator.", hint="Give one at least."
        )
    header = component.header or "Authorization"
    word = component.auth_method or "Bearer"
    return [Injection(headers={header: f"{word} {token}"}, place=PLACE) for token in tokens]


class TokenRotation(Authentication):
    """Gives each request the credentials of a token that has calls left.

    Args:
        component: as the manifest has it.
        config: for its templates.
        network: waits, and has the time.
        credentials: of each token.
        quotas: what the tokens have left.

    Attributes:
        credentials: of each token; none of them may be shown.
        quotas: what the tokens have left.

    Raises:
        ConfigurationError: a matcher or the longest wait is none.
    """

    def __init__(
        self,
        component: RateLimitedMultipleTokenAuthenticator,
        config: Mapping[str, Any],
        network: Network,
        credentials: Sequence[Injection],
        quotas: Quotas,
    ) -> None:
        self.credentials = credentials
        self.quotas = quotas
        self._network = network
        context = {"config": config, "parameters": component.parameters}
        longest = as_text(component.max_wait_time or "PT2H", context)
        self._longest = seconds_of(longest, "max_wait_time", none=True)
        self._matchers = [
            (quota, [Matcher.of(one, config, _WHERE) for one in quota.matchers])
            for quota in component.quotas
        ]
        self._default = next(
            (quota for quota, matchers in self._matchers if not matchers), component.quotas[0]
        )

    def injection(self) -> Injection:
        """Return a token for a request that nothing is known about; raises as `prepare` does."""
        return self._turn(self._default.name)

    @property
    def secrets(self) -> Sequence[Injection]:
        """Return the credentials of all tokens."""
        return self.credentials

    def prepare(self, request: Request) -> tuple[Encoded, Injection]:
        """Return a request with a token that has calls left for it; wait until there is one.

        Raises:
            SourceError: all tokens are spent for longer than the manifest wants to wait, the API
                does not report the quotas, or the reading is cancelled.
        """
        credentials = self._turn(self._quota(encoded(request)).name)
        return encoded(request.with_injection(credentials)), credentials

    def observe(self, request: Encoded, credentials: Injection, answer: Answer) -> None:
        """Note what a response reports about the quota that its request counts for."""
        quota = self._quota(request)
        report = Report(
            left=whole(_header(answer, quota.remaining_header)),
            limit=whole(_header(answer, quota.limit_header)),
            reset=moment(_header(answer, quota.reset_header)),
            refused=answer.status in quota.exhaustion_status_codes,
        )
        if report != Report(left=None, limit=None, reset=None, refused=False):
            self.quotas.reported(self.credentials.index(credentials), quota.name, report)

    def retry_after(self, request: Encoded, credentials: Injection) -> float | None:
        """Return a short wait if the token of a request is spent and another is not."""
        token = self.credentials.index(credentials)
        return _ROTATION if self.quotas.others(token, self._quota(request).name) else None

    def _quota(self, request: Encoded) -> TokenQuota:
        for quota, matchers in self._matchers:
            if any(matcher.fits(request) for matcher in matchers):
                return quota
        return self._default

    def _turn(self, quota: str) -> Injection:
        deadline, waited = None, None
        while True:
            turn = self.quotas.turn(quota, waited)
            if turn.token is not None:
                if turn.seconds > 0:
                    self._network.wait(turn.seconds)
                return self.credentials[turn.token]
            now = self._network.now()
            deadline = now + self._longest if deadline is None else deadline
            if turn.seconds >= deadline - now or deadline <= now:
                raise SourceError(
                    f"All tokens are spent (quota {quota!r}), the first for at least "
                    f"{max(turn.seconds, 0):.0f} seconds more.",
                    hint="Read again later, with more tokens, or with a longer max_wait_time.",
                )
            self._network.wait(min(max(turn.seconds, _LEAST_WAIT), deadline - now))
            waited = turn.asked


def _header(answer: Answer, name: str | None) -> str | None:
    return answer.headers.get(name) if name else None
