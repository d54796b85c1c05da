"""A duplicate filter for large Scrapy crawls: a few bytes per URL, with its error stated, bounded and reported."""
