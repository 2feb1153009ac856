"""A tempest plugin for Zaqar v2 messaging: what Zaqar promises, and what Zaqar Lite adds."""
