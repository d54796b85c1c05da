"""A chain in a job directory: lock, layer files, forgotten fingerprints, and the import of what Scrapy left."""
