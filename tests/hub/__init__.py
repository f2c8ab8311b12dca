"""The hub and the pipes to it, as processes."""
