"""Notifications for users who are not watching. The hub decides what to send (`helmsman.hub.notifier`)."""
