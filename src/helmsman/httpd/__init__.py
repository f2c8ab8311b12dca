"""The HTTP server: who gets in, and the MCP endpoint and the dashboard behind it."""
