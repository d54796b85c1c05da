"""What the faces have in common. Knows Scrapy and the settings; does not know where a chain lives.

``base_dupefilter`` is the way of a request. Around it: fingerprints (``keys``), what is asked about links, log lines,
failures, how a crawl starts and ends, and the moment at which the engine is done with a request.
"""
