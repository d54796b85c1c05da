"""The fleet: one queue and one filter on a Redis or Valkey server that many workers share."""
