"""What people type: ``scrapy bloom ...`` in a project, ``python -m scrapy_bloom ...`` anywhere.

``command_line`` finds the command, ``terminal`` prints. The other modules are commands, and what several commands share.
"""
