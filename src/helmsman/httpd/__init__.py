"""HTTP server: authentication, the MCP endpoint, the API and the dashboard."""
