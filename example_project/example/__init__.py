"""A small Scrapy project that shows scrapy-bloom at work; the ``maze`` spider needs no internet."""
