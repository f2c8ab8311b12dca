"""Shared foundations: processes, files, git, concurrency, text. Knows no agent."""
