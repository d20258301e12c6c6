"""The console in the browser: pages from the server, small modules in the page, no build step."""
