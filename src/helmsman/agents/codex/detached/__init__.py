"""Engines that outlive the processes that use them."""
