"""A toy agent with a protocol of its own: what it takes to add an agent is this package."""
