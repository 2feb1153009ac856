"""`zaqar-lite bench`: send prepared requests to any Zaqar v2 server and measure it."""
