"""Settings of the example project: one line switches the duplicate filter, the rest is ordinary Scrapy."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"

EXTENSIONS = {"example.summary.CrawlSummary": 500}

ROBOTSTXT_OBEY = True
USER_AGENT = "scrapy-bloom-example"

TELNETCONSOLE_ENABLED = False  # a crawl of a local site needs no further port
REMOTE_CONTROL_ENABLED = False  # what Scrapy 2.19 has in its place
LOG_LEVEL = "INFO"  # one line per page would bury the summary
