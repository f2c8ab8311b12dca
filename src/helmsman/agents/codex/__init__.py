"""All knowledge of Codex, and nothing else."""
