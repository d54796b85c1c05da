"""What the faces have in common. Knows Scrapy and the settings; does not know where a chain lives.

``base_dupefilter`` is the way of a request. Around it: how fingerprints are made, what is asked about links, log lines,
failures, how a crawl starts and ends, and when the engine has finished with a request.
"""
