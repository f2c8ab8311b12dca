"""Claude Code, through the protocol of its headless mode."""
