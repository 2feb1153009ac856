"""The message store: one method of the seam each, in the module that it belongs to."""

from zaqar_lite.storage.swift.changing import Changing
from zaqar_lite.storage.swift.posting import Posting
from zaqar_lite.storage.swift.settling import Settling
from zaqar_lite.storage.swift.sweeping import Sweeping


class SwiftMessageStore(Posting, Changing, Settling, Sweeping):
    """Messages and claims as objects."""
