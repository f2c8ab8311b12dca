"""Measure the overhead of a fleet, without agents."""
