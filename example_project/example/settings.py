"""Settings of the example project: one line switches scrapy-bloom on, the rest is ordinary Scrapy."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

ADDONS = {"scrapy_bloom.Addon": 300}  # the duplicate filter and, with JOBDIR, the queue that survives kill -9

EXTENSIONS = {"example.summary.CrawlSummary": 500}

ROBOTSTXT_OBEY = True
USER_AGENT = "scrapy-bloom-example"

TELNETCONSOLE_ENABLED = False  # a crawl of a local site needs no further port
REMOTE_CONTROL_ENABLED = False  # what Scrapy 2.19 has in its place
LOG_LEVEL = "INFO"  # one line per page would bury the summary
