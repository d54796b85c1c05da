"""What counts as the same page: canonical URLs and request fingerprints."""
