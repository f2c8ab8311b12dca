"""Values that all packages share: events, questions, options and requests.

They are frozen, and contain no logic beyond their own fields.
"""
