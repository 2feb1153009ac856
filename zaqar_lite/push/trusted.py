"""Webhooks that get a token of the user who subscribed: `trust+http` and `trust+https`."""

from collections.abc import Awaitable, Callable

from zaqar_lite.domain.errors import NotFound, Unavailable
from zaqar_lite.service.delivery.attempt import Answer, Notification, Transport


class TrustedWebhooks(Transport):
    """Send notifications as webhooks, with a token of the subscription's trust in X-Auth-Token.

    `token_of` finds it; NotFound says that the trust has ended, which no retry mends.
    """

    def __init__(self, webhooks: Transport, token_of: Callable[[str], Awaitable[str]]) -> None:
        self._webhooks = webhooks
        self._token_of = token_of

    async def send(self, notification: Notification) -> Answer:
        """Send a notification; whatever goes wrong is in the answer."""
        try:
            token = await self._token_of(notification.trust)
        except NotFound as exc:
            return Answer(error=f"refused: {exc}", refused=True)
        except Unavailable as exc:
            return Answer(error=str(exc))
        return await self._webhooks.send(
            notification._replace(
                subscriber=notification.subscriber.partition("+")[2],
                headers={**notification.headers, "x-auth-token": token},
            )
        )
