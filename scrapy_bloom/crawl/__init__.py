"""What the faces have in common: fingerprints, log lines, failures, start and end of a crawl."""
