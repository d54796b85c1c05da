"""What counts as the same page. Knows no filter and no crawl.

``canonical`` is w3lib's canonical form, only faster; ``rules`` merges further spellings; ``fingerprint`` is Scrapy's
fingerprint, only faster.
"""
