"""Settings of the example: one line switches scrapy-bloom on, the rest is ordinary Scrapy."""

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

ADDONS = {"scrapy_bloom.Addon": 300}  # the filter and, with JOBDIR, the queue and the feed that survive kill -9

DOWNLOADER_MIDDLEWARES = {"example.site.LocalSite": 100}  # plays the internet
DOWNLOAD_DELAY = 0

TELNETCONSOLE_ENABLED = False  # a crawl of a local site needs no further port
REMOTE_CONTROL_ENABLED = False  # what Scrapy 2.19 has in its place
LOG_LEVEL = "INFO"  # one line per page would bury the rest
