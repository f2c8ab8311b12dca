"""Telling people of what waits or has ended when nobody looks. The hub decides what is told (`helmsman.hub.notifier`)."""
