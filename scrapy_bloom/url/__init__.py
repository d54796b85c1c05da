"""What counts as the same page. Knows no filter and no crawl.

``canonical`` is w3lib's canonical form, faster; ``rules`` merge further spellings; ``fingerprint`` is Scrapy's, faster.
"""
