"""A crawl's memory in its job directory: pending requests, the filter beside them, and the one commit of both."""
