"""A chain in a job directory. Knows no Scrapy object and no server.

``directory`` opens it for a crawl, ``inspect`` describes it without touching it; ``layerfile``, ``layout`` and
``forgotten`` know what the files look like; ``scrapy_seen`` reads what Scrapy's own filter left; ``damage`` has the
words for a damaged file.
"""
