"""`codex cloud`, and what it prints as values."""
