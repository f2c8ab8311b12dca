"""Toy agent with its own protocol: this package is all that a new agent needs."""
