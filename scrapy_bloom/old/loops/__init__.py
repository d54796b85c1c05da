"""Endless URL spaces: what keeps a crawl out of calendars, session ids and mazes, where every URL is new.

``options`` is what a user may set, ``limits`` what the URL alone gives away. ``shapes`` sorts URLs into kinds, ``news``
says what a page brought, ``account`` counts it for each shape, ``demotion`` makes an order of the counts, and ``guard``
judges by them. ``parked`` keeps its requests and verdicts, ``verdicts`` reads them while no crawl runs, and
``crawl/loop_guard_middleware`` shows the guard the crawl. Nothing here knows the duplicate filter or a scheduler.
"""
