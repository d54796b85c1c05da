"""The house as it was, until each of its rooms has been rebuilt."""
