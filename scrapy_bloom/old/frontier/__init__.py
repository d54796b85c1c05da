"""Pending requests, kept so that ``kill -9`` loses none of them.

From the bottom up: ``serialize`` turns a request into bytes, ``database`` is the file, ``journal`` decides what is
written when, ``lanes`` are the plain queues that Scrapy's priority queues pop from, ``slots`` is a priority queue for
many hosts. ``recovery`` goes on where a run left off, ``agreement`` compares frontier and filter, ``scrapy_queue``
imports Scrapy's own queue and ``export`` gives it back, ``salvage`` reads a damaged file, ``handed_out`` counts what a
kill repeats. ``scheduler`` is the face that Scrapy sees. None of them knows how the filter works.
"""
