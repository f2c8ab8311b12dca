"""What front doors take and show: one shape for a session, a task, a question."""
