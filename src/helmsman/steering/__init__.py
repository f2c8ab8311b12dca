"""What sessions are asked to do, and which there are: the core that front doors and capabilities share."""
