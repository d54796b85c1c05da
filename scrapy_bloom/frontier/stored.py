"""The format of stored requests, as far as stores read it: a pickle of a dict of attributes."""

PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: every supported Python reads it, whichever wrote it."""
MARK = "_bloom_mark"
"""The loop guard's mark, beside the attributes of the request: a Scrapy without scrapy-bloom passes over it."""
OF_THE_LAST_TRY = ("retry_times", "download_latency")
"""Keys of ``meta`` that a failed request loses when it is put back: with its retries used up, it would fail at once."""
