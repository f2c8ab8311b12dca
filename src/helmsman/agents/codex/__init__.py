"""Codex: all knowledge of its protocols, files and versions."""
