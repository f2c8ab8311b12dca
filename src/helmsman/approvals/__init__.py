"""Which answers are given without asking, and what an answer covers: rules, deadlines, the audit log."""
