"""Jobs: one act on many messages of a queue, in steps that go on in another process."""
