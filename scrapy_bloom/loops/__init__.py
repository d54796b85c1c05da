"""The loop guard: limits of URLs, kinds of URLs, what pages bring, and how a crawl is shared by that."""
