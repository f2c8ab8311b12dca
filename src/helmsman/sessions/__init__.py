"""Sessions: what is true of one, who is told, and who answers its questions."""
