"""Work that begins by itself: when it is due, and what is written down of it."""
