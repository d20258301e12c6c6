"""The web console: requests of people and programs in, pages and JSON out.

Open `server` first: it makes the `app` and runs it beside `background`, which feeds the queue.
`login`, `auth` and `security` are the door; `pages`, `fleet` and `audit_page` the screens; `api`
what their scripts call.
"""
