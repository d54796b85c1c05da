"""What the processes of a fleet share, on Redis or Valkey. Knows no Scrapy.

``client`` talks to the server, ``filter`` is the chain there with a local one in front, ``frontier`` the queue with its
leases. ``own_server`` starts a server for one crawl, ``server_check`` says what a server may lose.
"""
