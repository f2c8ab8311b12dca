"""Dashboard: the page, and the HTTP API that it uses."""
