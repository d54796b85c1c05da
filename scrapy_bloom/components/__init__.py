"""What Scrapy loads: the add-on, filters, schedulers, middlewares, the feed exporter. They translate for the crawl."""
