"""Agents that speak the Agent Client Protocol: the protocol once, and a profile for each agent."""
