"""Processes that outlive those who wanted them, each owned by a keeper, which knows no agent."""
