"""Agents that speak the Agent Client Protocol: the protocol once, and a module with profile and reader for each agent."""
