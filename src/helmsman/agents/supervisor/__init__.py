"""Supervisors: each owns one agent process, which outlives the hub. A supervisor knows no agent."""
