"""How to talk to a `codex app-server`: processes, transports, the JSON-RPC peer, the methods."""
