"""The default engine: one app-server that carries many sessions."""
