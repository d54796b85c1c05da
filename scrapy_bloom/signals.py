"""Signals of scrapy-bloom, for ``crawler.signals.connect()``."""

item_gone = object()
"""Sent with ``BLOOM_CHANGES`` when a cycle ends, for each item that is gone: ``label`` (str) and
``url`` of its page (str; None if the request of the page cannot be read).

After a kill at the end of a cycle, it is sent once more.
"""
