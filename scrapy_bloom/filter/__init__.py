"""The data structure: bloom filter layers and chains of them. Knows no Scrapy, no Redis, no path, no clock."""
