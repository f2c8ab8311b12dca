"""The hub: one process per user and state directory, which every door reaches by a socket in that directory."""
