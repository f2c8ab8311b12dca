"""Scheduled work: due times and stored runs."""
