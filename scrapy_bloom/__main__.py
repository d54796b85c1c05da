"""``python -m scrapy_bloom``: the commands, outside of a project, too."""

import sys

from scrapy_bloom.commands.command_line import main

sys.exit(main())
