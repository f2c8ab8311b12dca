"""What a desktop program starts when the bundle is installed in it: the MCP server of Helmsman, on a pipe."""

from __future__ import annotations

import sys

from helmsman.cli import main

if __name__ == "__main__":
    sys.argv = ["helmsman", "serve"]
    main()
