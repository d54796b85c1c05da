"""Endless URL spaces: what keeps a crawl out of calendars, session ids and mazes, where every URL is new.

``options`` is what a user may set, ``limits`` what the URL alone gives away. Nothing here knows the duplicate filter,
a scheduler or a crawler's stats: the rooms above ask, count and log.
"""
