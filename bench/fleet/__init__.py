"""What a fleet's own machinery costs: without agents, whose turns take as long as they take."""
