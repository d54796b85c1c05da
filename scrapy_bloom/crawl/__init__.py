"""One crawl: what is open, the pages in progress, what was counted, and Scrapy's private parts that tell of them."""
