"""What is durable, whenever the hub is killed."""
