"""Approval rules, answer deadlines and the audit log."""
