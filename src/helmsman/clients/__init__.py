"""The configuration files of MCP clients: where they are, what in them runs Codex or Helmsman, and how to change just that.

`locations` knows the clients, `json_file` and `toml_file` change one value and leave the rest as it is, `entries` tells
our entries and those of the old `codex mcp-server` from all others, `launch` says how to start Helmsman, `changes`
plans and applies, `record` remembers what was replaced so that it can be put back, `handshake` tries an entry out.
"""
