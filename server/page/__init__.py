"""The files of the page for people; see `opslog.server.http.page_routes`."""
