"""What many processes share, on Redis."""
