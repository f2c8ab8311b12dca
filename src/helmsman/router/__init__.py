"""The router's pure half: what a request in plain words asks for, and which task it means.

`intent` reads the words, `route` decides which task and where, `confirmation` makes and checks the token that confirms
a plan. Nothing here runs anything, waits for anything or keeps any state.
"""
