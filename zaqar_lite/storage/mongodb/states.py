"""The states of messages, as their documents have them in the field `s`."""

READY, DELAYED, CLAIMED, _RECORD, POPPED, PARKED, GONE = range(7)
"""3 was a claim's record in earlier versions. What is GONE is to be deleted: it is never stored."""
LIVE = (READY, DELAYED, CLAIMED, PARKED)
"""What readers may see."""
WAITING = (DELAYED, CLAIMED, PARKED)
"""What becomes ready by time."""
