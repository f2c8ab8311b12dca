"""Configuration files of MCP clients: locate them, recognize entries for Codex or Helmsman, and edit only those.

`locations` lists the clients, `json_file` and `toml_file` edit single values, `entries` distinguishes our entries and
those of the old `codex mcp-server` from others, `launch` returns the start command, `changes` plans and applies edits,
`record` stores replaced values for `uninstall`, `handshake` tests an entry.
"""
