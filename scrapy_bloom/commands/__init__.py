"""What people type: ``scrapy bloom ...`` in a project, ``python -m scrapy_bloom ...`` anywhere.

``command_line`` reads arguments and prints, each other module answers one question. None of them changes a job.
"""
