"""Front end for clients of the Agent Client Protocol: `helmsman acp`."""
