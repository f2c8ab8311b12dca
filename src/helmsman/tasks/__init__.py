"""The registry of tasks: every turn Helmsman starts, and every cloud task, in one file that many processes share."""
