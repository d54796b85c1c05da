"""The data structure: bloom filter layers and chains of them. Knows no Scrapy, no Redis, no path, no clock.

A *key* here is any byte string; in a crawl it is a request's fingerprint. ``sizing`` has the formulas, ``probes`` the
bits of a key, ``layer`` one filter of fixed size, ``chain`` the filter that grows, ``key_space`` what made the keys.
"""
