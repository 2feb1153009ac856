"""Who is asking: the providers that turn a credential into a principal, and what it may do."""
