"""What agents keep on disk of their sessions, read without starting them."""
