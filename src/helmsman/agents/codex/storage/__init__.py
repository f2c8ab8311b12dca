"""Sessions on disk: which there are, how their turns ended, what they spent."""
