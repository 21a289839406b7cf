"""The command line: the only floor with print, the clock, environment variables and exit statuses."""
