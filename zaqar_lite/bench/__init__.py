"""`zaqar-lite bench`: load any Zaqar v2 server from prepared bytes and say what it did."""
