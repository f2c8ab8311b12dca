"""Fallback engine: `codex exec`, one process per turn."""
