"""The dashboard: a page for people, and the HTTP API under it."""
