"""What people type: ``scrapy bloom ...`` in a project, ``python -m scrapy_bloom ...`` anywhere.

``command_line`` finds the command, ``terminal`` prints. All others are commands, and what several commands share.
"""
