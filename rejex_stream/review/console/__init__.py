"""The web console: requests of people and programs in, pages and JSON out.

Open `server` first: it makes the application and runs it beside `background`, which feeds the
queue. `console` is the door; `pages` the screens; `api` what their scripts call.
"""
