"""A chain in a job directory. Knows no Scrapy object and no server.

``directory`` opens it for a crawl; ``inspect`` describes it and ``lookup`` asks it without touching it; ``merge`` makes
one of several, which ``merged`` reads. ``layerfile``, ``layout`` and ``forgotten`` know what the files look like,
``damage`` has the words for a damaged one. ``scrapy_seen`` reads what Scrapy's own filter left, ``frontier_file`` and
``frontier_mark`` know what the filter must know of a frontier, ``figures`` is a file for people, and ``job_lock`` keeps
crawls out.
"""
