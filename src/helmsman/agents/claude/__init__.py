"""Claude Code, by the protocol of its own headless mode."""
