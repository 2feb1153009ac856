"""Webhooks that get a token of the user who subscribed: `trust+http` and `trust+https`."""

from collections.abc import Awaitable, Callable

from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.service.courier import Answer, Letter, Transport


class TrustedWebhooks:
    """Send letters as webhooks, with a token of the subscription's trust in X-Auth-Token.

    `token_of` finds it; NotFound says that the trust has ended, which no retry mends.
    """

    def __init__(self, webhooks: Transport, token_of: Callable[[str], Awaitable[str]]) -> None:
        self._webhooks = webhooks
        self._token_of = token_of

    async def send(self, letter: Letter) -> Answer:
        """Send a letter; whatever goes wrong is in the answer."""
        try:
            token = await self._token_of(letter.trust)
        except NotFound as exc:
            return Answer(error=f"refused: {exc}", refused=True)
        except Unavailable as exc:
            return Answer(error=str(exc))
        return await self._webhooks.send(
            letter._replace(
                subscriber=letter.subscriber.partition("+")[2],
                headers={**letter.headers, "x-auth-token": token},
            )
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._webhooks.close()
