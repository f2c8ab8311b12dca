"""An MCP server over stdio that notes each call in a file: `python plain_mcp_server.py FILE TOOL...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    called, names = Path(sys.argv[1]), sys.argv[2:]
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [{"name": name, "description": "A tool", "inputSchema": schema} for name in names]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result: dict[str, object] = {}
        if message["method"] == "initialize":
            about = {"name": "plain", "version": "1"}
            version = message["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        elif message["method"] == "tools/list":
            result = {"tools": tools}
        elif message["method"] == "tools/call":
            try:
                with called.open("a", encoding="utf-8") as file:
                    file.write(message["params"]["name"] + "\n")
                said = "called"
            except OSError as error:
                said = str(error)
            result = {"content": [{"type": "text", "text": said}]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
