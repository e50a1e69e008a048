"""The files of the page for people; see `opslog.server.page_routes`."""
