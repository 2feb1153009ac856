"""The Python SDK: `Client`, `AsyncClient`, and what they take and give back.

    from zaqar_lite.client import Client

    with Client("http://127.0.0.1:8888") as client:
        client.post("orders", {"order": 1})
        with client.claim("orders") as claim:
            for message in claim:
                print(message.body)

Nothing of the server is imported, and the HTTP library only when a client is made.
"""

from zaqar_lite.client.async_client import AsyncClient as AsyncClient
from zaqar_lite.client.auth import Auth as Auth
from zaqar_lite.client.auth import KeyAuth as KeyAuth
from zaqar_lite.client.auth import KeystoneAuth as KeystoneAuth
from zaqar_lite.client.auth import NoAuth as NoAuth
from zaqar_lite.client.auth import SignedAuth as SignedAuth
from zaqar_lite.client.calls import Resend as Resend
from zaqar_lite.client.calls import RetryPolicy as RetryPolicy
from zaqar_lite.client.claims import AsyncClaim as AsyncClaim
from zaqar_lite.client.claims import Claim as Claim
from zaqar_lite.client.endpoints.claims import ClaimOptions as ClaimOptions
from zaqar_lite.client.endpoints.dead_letters import Redriven as Redriven
from zaqar_lite.client.endpoints.dead_letters import Source as Source
from zaqar_lite.client.endpoints.requests import Topic as Topic
from zaqar_lite.client.errors import BadAnswer as BadAnswer
from zaqar_lite.client.errors import BadRequest as BadRequest
from zaqar_lite.client.errors import ClaimLost as ClaimLost
from zaqar_lite.client.errors import Conflict as Conflict
from zaqar_lite.client.errors import DueChanged as DueChanged
from zaqar_lite.client.errors import Forbidden as Forbidden
from zaqar_lite.client.errors import KeyReused as KeyReused
from zaqar_lite.client.errors import MessageClaimed as MessageClaimed
from zaqar_lite.client.errors import MessageNotFound as MessageNotFound
from zaqar_lite.client.errors import NoDeadLetters as NoDeadLetters
from zaqar_lite.client.errors import NotDelayed as NotDelayed
from zaqar_lite.client.errors import NotFound as NotFound
from zaqar_lite.client.errors import Overloaded as Overloaded
from zaqar_lite.client.errors import QueueExists as QueueExists
from zaqar_lite.client.errors import QueueNotFound as QueueNotFound
from zaqar_lite.client.errors import Refused as Refused
from zaqar_lite.client.errors import ServerFault as ServerFault
from zaqar_lite.client.errors import ServerWarning as ServerWarning
from zaqar_lite.client.errors import SignatureRefused as SignatureRefused
from zaqar_lite.client.errors import StatusError as StatusError
from zaqar_lite.client.errors import Unauthenticated as Unauthenticated
from zaqar_lite.client.errors import Unavailable as Unavailable
from zaqar_lite.client.errors import Unreachable as Unreachable
from zaqar_lite.client.errors import Unsupported as Unsupported
from zaqar_lite.client.errors import ZaqarError as ZaqarError
from zaqar_lite.client.models import AccessKey as AccessKey
from zaqar_lite.client.models import Attempt as Attempt
from zaqar_lite.client.models import DataKey as DataKey
from zaqar_lite.client.models import DeadLetter as DeadLetter
from zaqar_lite.client.models import Delivery as Delivery
from zaqar_lite.client.models import Done as Done
from zaqar_lite.client.models import FailedDelivery as FailedDelivery
from zaqar_lite.client.models import Flavor as Flavor
from zaqar_lite.client.models import Held as Held
from zaqar_lite.client.models import Ids as Ids
from zaqar_lite.client.models import Job as Job
from zaqar_lite.client.models import Message as Message
from zaqar_lite.client.models import MessageAge as MessageAge
from zaqar_lite.client.models import MessagePage as MessagePage
from zaqar_lite.client.models import NewMessage as NewMessage
from zaqar_lite.client.models import Ping as Ping
from zaqar_lite.client.models import Pool as Pool
from zaqar_lite.client.models import PoolDrain as PoolDrain
from zaqar_lite.client.models import ProjectQuota as ProjectQuota
from zaqar_lite.client.models import Queue as Queue
from zaqar_lite.client.models import Range as Range
from zaqar_lite.client.models import RawBody as RawBody
from zaqar_lite.client.models import SignedURL as SignedURL
from zaqar_lite.client.models import Stats as Stats
from zaqar_lite.client.models import Subscription as Subscription
from zaqar_lite.client.posting import Posted as Posted
from zaqar_lite.client.posting import PostOptions as PostOptions
from zaqar_lite.client.posting import PostSummary as PostSummary
from zaqar_lite.client.posting import Rejected as Rejected
from zaqar_lite.client.queue_options import Ensured as Ensured
from zaqar_lite.client.queue_options import QueueOptions as QueueOptions
from zaqar_lite.client.settlements import Settled as Settled
from zaqar_lite.client.settlements import Settlement as Settlement
from zaqar_lite.client.sync_client import Client as Client
from zaqar_lite.client.time_limit import TimeLimitExceeded as TimeLimitExceeded
from zaqar_lite.client.worker import Reject as Reject
from zaqar_lite.client.worker import Retry as Retry
from zaqar_lite.client.worker import Worker as Worker
from zaqar_lite.client.worker import WorkerOptions as WorkerOptions
from zaqar_lite.client.worker import WorkerStats as WorkerStats
from zaqar_lite.client.worker import worker as worker
