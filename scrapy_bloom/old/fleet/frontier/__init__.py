"""Pending requests of many processes on Redis: entries without pickles, scripts with leases, a thread that calls."""
