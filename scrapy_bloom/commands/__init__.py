"""What people type: ``scrapy bloom ...`` in a project, ``python -m scrapy_bloom ...`` anywhere.

``command_line`` finds the command, ``terminal`` prints, and each other module is one command or a part of its page.
"""
