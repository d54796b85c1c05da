"""Speed and memory, measured beside Scrapy's own filter and other bloom filters. Start with ``README.md``."""
