"""The ground everything stands on: processes, files, concurrency. Knows no agent."""
