"""Pending requests: their order, lanes and limits, the page that a request becomes, and the store in memory."""
