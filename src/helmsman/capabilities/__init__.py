"""Capabilities of agents beyond starting and messages (`helmsman.capabilities.extras`)."""
