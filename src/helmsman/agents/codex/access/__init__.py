"""What a session may do, worked out before anything starts."""
