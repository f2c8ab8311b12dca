"""Sessions: their state, their events, and the answers to their questions."""
