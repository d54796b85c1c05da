"""A site with traps: honest sections that look like traps beside traps that look like sections.

``site`` puts it together from the sections of the other modules, one module for each group of them. Pages are made as
they are asked for, and the same address gives the same page on every run, but for clocks and counters, which go by how
many pages were served. Nothing here knows Scrapy, a duplicate filter or a guard.
"""
