"""The fallback engine: `codex exec`, one process a turn."""
