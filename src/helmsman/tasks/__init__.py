"""Registry of tasks: every turn that Helmsman starts, and every cloud task, in one file that many processes share."""
