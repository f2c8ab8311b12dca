"""Pure part of the router: parse plain-language requests and select their task.

`intent` parses the words, `route` selects the task and the place, `confirmation` creates and checks confirmation
tokens. These modules run nothing, never wait and keep no state.
"""
