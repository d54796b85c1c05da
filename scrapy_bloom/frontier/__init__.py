"""Pending requests, kept so that ``kill -9`` loses none of them.

From the bottom up: ``serialize`` turns a request into bytes, ``database`` is the file, ``journal`` what will be written
and when, ``lanes`` the plain queues that Scrapy's priority queues pop from, ``slots`` a priority queue for many hosts.
``recovery`` goes on where a run left off, ``agreement`` compares frontier and filter, ``scrapy_queue`` imports and
``export`` gives back Scrapy's own queue, ``salvage`` reads a damaged file, ``handed_out`` counts what a kill repeats.
``scheduler`` is the face that Scrapy sees. None of them knows how the filter works.
"""
