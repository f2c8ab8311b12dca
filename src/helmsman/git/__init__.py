"""Git: run it safely on untrusted repositories; snapshots, patches, worktrees, and trees sent to other machines.

All functions block; call them in threads.
"""
