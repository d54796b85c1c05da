"""Signals of scrapy-bloom, for ``crawler.signals.connect()``."""

item_gone = object()
"""Sent with ``BLOOM_CHANGES`` when a cycle ends, for each item that is gone: ``label`` (str) and ``url`` (str or None).

After a kill at the end of a cycle, it is sent once more.
"""
