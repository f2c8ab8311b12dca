"""Core service for sessions, shared by front ends and capabilities: it starts, steers, stops and lists them."""
