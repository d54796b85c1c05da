"""Drops links to pages that the crawl has seen, before they become requests."""
