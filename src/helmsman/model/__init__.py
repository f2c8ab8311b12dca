"""The vocabulary: what happens in a session, what can be asked and answered, what a caller may ask for.

Frozen values, with no behaviour but their own.
"""
