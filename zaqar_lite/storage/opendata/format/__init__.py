"""The bytes of the records: keys and values, both ways, with nothing else behind them.

`keys.py` lists the records; `records.py` has the RFC's values, `active.py` the pages of waiting
messages, `bookkeeping.py` the configuration of queues and the records that are additions;
`encoding.py` is what all of them are made of.
"""
