"""`python -m helmsman`."""

from __future__ import annotations

from helmsman.cli import main

if __name__ == "__main__":
    main()
