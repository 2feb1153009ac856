"""The Python SDK: `Client`, `AsyncClient`, and what they take and give back.

    from zaqar_lite.client import Client

    with Client("http://127.0.0.1:8888") as client:
        client.post("orders", {"order": 1})
        with client.claim("orders") as claim:
            for message in claim:
                print(message.body)

Nothing of the server is imported, and the HTTP library only when a client is made.
"""

from zaqar_lite.client.async_client import AsyncClient
from zaqar_lite.client.auth import Auth, KeyAuth, KeystoneAuth, NoAuth, SignedAuth
from zaqar_lite.client.calls import Resend, RetryPolicy
from zaqar_lite.client.claims import AsyncClaim, Claim
from zaqar_lite.client.endpoints.claims import ClaimOptions
from zaqar_lite.client.endpoints.dead_letters import Redriven, Source
from zaqar_lite.client.endpoints.requests import Topic
from zaqar_lite.client.errors import (
    BadAnswer,
    BadRequest,
    ClaimLost,
    Conflict,
    DueChanged,
    Forbidden,
    KeyReused,
    MessageClaimed,
    MessageNotFound,
    NoDeadLetters,
    NotDelayed,
    NotFound,
    Overloaded,
    QueueExists,
    QueueNotFound,
    Refused,
    ServerFault,
    ServerWarning,
    SignatureRefused,
    StatusError,
    Unauthenticated,
    Unavailable,
    Unreachable,
    Unsupported,
    ZaqarError,
)
from zaqar_lite.client.models import (
    AccessKey,
    Attempt,
    DataKey,
    DeadLetter,
    Delivery,
    Done,
    FailedDelivery,
    Flavor,
    Held,
    Ids,
    Message,
    MessageAge,
    MessagePage,
    NewMessage,
    Ping,
    Pool,
    PoolDrain,
    ProjectQuota,
    Queue,
    Range,
    RawBody,
    SignedURL,
    Stats,
    Subscription,
)
from zaqar_lite.client.posting import Posted, PostOptions, PostSummary, Rejected
from zaqar_lite.client.queue_options import Ensured, QueueOptions
from zaqar_lite.client.settlements import Settled, Settlement
from zaqar_lite.client.sync_client import Client
from zaqar_lite.client.time_limit import TimeLimitExceeded
from zaqar_lite.client.worker import Reject, Retry, Worker, WorkerOptions, WorkerStats, worker

__all__ = [
    "AccessKey",
    "AsyncClaim",
    "AsyncClient",
    "Attempt",
    "Auth",
    "BadAnswer",
    "BadRequest",
    "Claim",
    "ClaimLost",
    "ClaimOptions",
    "Client",
    "Conflict",
    "DataKey",
    "DeadLetter",
    "Delivery",
    "Done",
    "DueChanged",
    "Ensured",
    "FailedDelivery",
    "Flavor",
    "Forbidden",
    "Held",
    "Ids",
    "KeyAuth",
    "KeyReused",
    "KeystoneAuth",
    "Message",
    "MessageAge",
    "MessageClaimed",
    "MessageNotFound",
    "MessagePage",
    "NewMessage",
    "NoAuth",
    "NoDeadLetters",
    "NotDelayed",
    "NotFound",
    "Overloaded",
    "Ping",
    "Pool",
    "PoolDrain",
    "PostOptions",
    "PostSummary",
    "Posted",
    "ProjectQuota",
    "Queue",
    "QueueExists",
    "QueueNotFound",
    "QueueOptions",
    "Range",
    "RawBody",
    "Redriven",
    "Refused",
    "Reject",
    "Rejected",
    "Resend",
    "Retry",
    "RetryPolicy",
    "ServerFault",
    "ServerWarning",
    "Settled",
    "Settlement",
    "SignatureRefused",
    "SignedAuth",
    "SignedURL",
    "Source",
    "Stats",
    "StatusError",
    "Subscription",
    "TimeLimitExceeded",
    "Topic",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "Worker",
    "WorkerOptions",
    "WorkerStats",
    "ZaqarError",
    "worker",
]
