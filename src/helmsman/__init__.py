"""Helmsman steers OpenAI Codex."""
