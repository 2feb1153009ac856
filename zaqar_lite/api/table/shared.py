"""Parameters and paths that the routes of several nouns share."""

from zaqar_lite.api.routes import Parameter

DETAILS = Parameter("details", "Flag", "Add what Zaqar's own keys leave out.")
MARKER = Parameter("marker", "Text", "Where the page before ended; opaque.")
LIMIT = Parameter("limit", "PageLimit", "How many entries to answer at most.")
WAIT = Parameter("wait", "Wait", "Seconds to wait while there is nothing.")
QUEUE = "/v2/queues/{queue_name}"
