"""MCP front end: `helmsman serve`."""
