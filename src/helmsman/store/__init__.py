"""The store: the log of all sessions' events, tasks, schedules and notices, in one SQLite file."""
