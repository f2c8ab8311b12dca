"""The MCP front door: `helmsman serve`."""
