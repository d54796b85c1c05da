"""The requests that wait for their download, kept so that ``kill -9`` loses none of them.

``database`` is the file, ``queue`` the rows of it in memory and the moments at which they are written, ``lanes`` the
plain queues that Scrapy's priority queues pop from, ``progress`` learns when the engine is done with a request,
``handed`` keeps count of those handed out since the last commit, ``takeover`` imports a queue of Scrapy's own, and
``scheduler`` is the face that Scrapy sees. Only the last two know Scrapy's scheduler, and none of them knows the
filter: what they say to it is three methods, described in ``scheduler``.
"""
