"""Which links are dropped before they become requests: those whose page the crawl has seen."""
