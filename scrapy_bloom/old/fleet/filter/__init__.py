"""The shared filter: engines, the chain on the server, the local filter in front."""
