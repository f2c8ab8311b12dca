"""Hub: one process per user and state directory. Every client connects to it by a socket in that directory."""
