"""The filter: bloom filter layers, chains of them that grow, and their files. Knows no Scrapy and no Redis.

A *fingerprint* is what is added: any byte string; in a crawl, the fingerprint of a request.
"""
