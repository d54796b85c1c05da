"""What counts as the same page: w3lib's canonical form, Scrapy's fingerprint, and rules that go further."""
