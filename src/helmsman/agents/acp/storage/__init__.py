"""Readers of the files in which agents keep their sessions, without starting them."""
