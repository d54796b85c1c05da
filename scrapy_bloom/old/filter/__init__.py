"""The data structure: bloom filter layers and chains of them. Knows no Scrapy, no Redis, no path, no clock.

A *fingerprint* is what is added: any byte string, in a crawl that of a request. ``sizing`` has the formulas, ``probes``
the bits of a fingerprint, ``layer`` one filter of fixed size, ``chain`` the filter that grows, ``merged`` chains of
other crawls, and ``key_space`` says what made the fingerprints.
"""
