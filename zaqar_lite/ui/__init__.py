"""The page at `/ui/`: queues, messages, dead letters and jobs, to look at and to act on.

It is a client of the API in this process: what a person may see and do, and what is written to the
audit, is decided where every other client's requests are.
"""
