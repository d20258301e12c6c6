"""The tables of the review store.

Facts (`event`, `label`, `label_event`, `audit`) are only ever inserted; triggers refuse anything
else. Everything else is a view of those facts, or short-lived coordination (leases).
"""

__all__ = ["SCHEMA", "SCHEMA_VERSION"]

SCHEMA_VERSION = 9

_APPEND_ONLY = ("label", "label_event", "audit")

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE sensor (
  sensor_id INTEGER PRIMARY KEY,
  stream_key TEXT NOT NULL,
  sensor TEXT NOT NULL,
  grp TEXT NOT NULL,                -- text before the first slash, for grouping on screens
  pipeline TEXT NOT NULL DEFAULT '',
  channels TEXT NOT NULL DEFAULT '[]',
  first_ms INTEGER, last_ms INTEGER,  -- event times of which every verdict was counted
  epoch INTEGER,
  window_len INTEGER, n_anomalies INTEGER, band_lower INTEGER, band_upper INTEGER, tolerance REAL,
  UNIQUE (stream_key, sensor)
) STRICT;

CREATE TABLE episode (
  episode_id TEXT PRIMARY KEY,
  root_id TEXT NOT NULL,            -- the episode it was split from, else itself
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  why TEXT NOT NULL,
  status TEXT NOT NULL,             -- open|needs_second|disputed|done|expired|held|empty
  verdict TEXT,
  start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
  first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  n_events INTEGER NOT NULL,
  confidence REAL,                  -- the least stable event's
  priority INTEGER NOT NULL DEFAULT 0,
  received_ms INTEGER NOT NULL,     -- wall clock of the first arrival: what age counts from
  ready_ms INTEGER NOT NULL,
  decided_ms INTEGER,
  lease_owner TEXT, lease_until_ms INTEGER, lease_since_ms INTEGER,
  incident TEXT,                    -- the incident that its events are of: one item for all
  severity REAL,                    -- the largest of its events
  assigned TEXT,                    -- whose it is, until somebody gives it to another
  worth REAL NOT NULL DEFAULT 0     -- what an answer saves: the sum of its events
) STRICT;
CREATE INDEX episode_incident ON episode (incident) WHERE incident IS NOT NULL;
CREATE INDEX episode_queue ON episode (status, priority DESC, received_ms);
CREATE INDEX episode_worth ON episode (status, worth DESC);
CREATE INDEX episode_sensor ON episode (sensor_id, status, end_ms);
CREATE INDEX episode_lease ON episode (lease_owner) WHERE lease_owner IS NOT NULL;

CREATE TABLE event (
  event_id INTEGER PRIMARY KEY,
  topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
  reading INTEGER NOT NULL,         -- its index in the record, where that holds several
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  episode_id TEXT NOT NULL REFERENCES episode,
  event_time_ms INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  confidence REAL,
  reason TEXT,
  received_ms INTEGER NOT NULL,
  item BLOB NOT NULL,               -- the review item as JSON, without its context
  raw BLOB NOT NULL,                -- the whole record as it came, deflated
  raw_bytes INTEGER NOT NULL,       -- its size before deflating
  severity REAL,
  worth REAL NOT NULL DEFAULT 0,    -- expected cost of the label it leans to
  UNIQUE (topic, partition, offset, reading)
) STRICT;
CREATE INDEX event_episode ON event (episode_id, event_time_ms, event_id);

CREATE TABLE label (
  label_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  label_id TEXT NOT NULL UNIQUE,
  episode_id TEXT NOT NULL,
  reviewer TEXT NOT NULL,
  kind TEXT NOT NULL,               -- label | retract
  target TEXT,                      -- the label a retraction takes back
  source TEXT NOT NULL,             -- human | expired
  verdict TEXT,
  created_ms INTEGER NOT NULL,
  handle_ms INTEGER,                -- from claim to verdict, where it was claimed
  record BLOB NOT NULL              -- the LabelRecord as published
) STRICT;
CREATE INDEX label_episode ON label (episode_id);
CREATE INDEX label_time ON label (created_ms);

CREATE TABLE label_event (
  event_id INTEGER NOT NULL REFERENCES event,
  label_seq INTEGER NOT NULL REFERENCES label,
  PRIMARY KEY (event_id, label_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  label_id TEXT NOT NULL,
  key BLOB NOT NULL, value BLOB NOT NULL,
  sent_ms INTEGER, place TEXT
) STRICT;
CREATE INDEX outbox_pending ON outbox (seq) WHERE sent_ms IS NULL;

CREATE TABLE action (    -- what can be undone, and what a retried request gets back
  action_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  request_id TEXT NOT NULL UNIQUE,
  reviewer TEXT NOT NULL,
  kind TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  undone INTEGER NOT NULL DEFAULT 0,
  payload TEXT NOT NULL,
  result TEXT NOT NULL
) STRICT;
CREATE INDEX action_undo ON action (reviewer, undone, action_seq);

CREATE TABLE audit (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE INDEX audit_subject ON audit (subject, seq);

CREATE TABLE consumed (  -- where to go on reading, moved with what was read
  topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)
) STRICT;

CREATE TABLE counted (   -- verdicts already in the totals, per input partition
  topic TEXT NOT NULL, partition INTEGER NOT NULL, last_offset INTEGER NOT NULL,
  last_reading INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)
) STRICT;

CREATE TABLE point (     -- the series around events, full resolution, a ring
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  t_ms INTEGER NOT NULL,
  channel_values BLOB,                 -- float64, one per channel, NaN where missing
  score REAL,
  label INTEGER,
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE hour (      -- exact counts per hour; those forgotten in one sum
  sensor_id INTEGER NOT NULL REFERENCES sensor, t_ms INTEGER NOT NULL,
  normal INTEGER NOT NULL DEFAULT 0, anomaly INTEGER NOT NULL DEFAULT 0,
  rejected INTEGER NOT NULL DEFAULT 0,
  banded INTEGER NOT NULL DEFAULT 0,   -- events judged by rank and band: what theory speaks about
  ambiguous INTEGER NOT NULL DEFAULT 0,
  expected REAL NOT NULL DEFAULT 0,    -- sum of R over the banded events
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE accepted (  -- called normal, or muted: by how probably each was to be audited
  pipeline TEXT NOT NULL, t_ms INTEGER NOT NULL,  -- its hour
  p REAL NOT NULL,                     -- 0: it could not be drawn
  why TEXT NOT NULL,                   -- of p = 0: held | planned | rate
  n INTEGER NOT NULL, drawn INTEGER NOT NULL,
  PRIMARY KEY (pipeline, t_ms, p, why)
) STRICT, WITHOUT ROWID;

CREATE TABLE incident (  -- each as it stands
  incident TEXT PRIMARY KEY,
  pipeline TEXT NOT NULL, stream_key TEXT NOT NULL, state TEXT NOT NULL,
  version INTEGER NOT NULL, severity REAL NOT NULL, changed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE incident_change (
  change_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  incident TEXT NOT NULL, version INTEGER NOT NULL,
  record BLOB NOT NULL,                -- as published
  UNIQUE (incident, version)
) STRICT;

CREATE TABLE reply (     -- what became of commands, whoever gave them
  reply_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL, position TEXT NOT NULL,
  accepted INTEGER NOT NULL, said TEXT NOT NULL,
  UNIQUE (command, position)
) STRICT;

CREATE TABLE answer (    -- commands given here, and those on their way out
  answer_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL UNIQUE,        -- made of the request: a retry says nothing new
  incident TEXT NOT NULL,              -- empty: answers to events, which teach
  pipeline TEXT NOT NULL,
  record BLOB NOT NULL,                -- the command as published
  given_ms INTEGER NOT NULL DEFAULT 0,
  leaving_ms INTEGER,                  -- may be in the control log from then on
  sent_ms INTEGER,
  withdrawn_ms INTEGER                 -- taken back before it left
) STRICT;

CREATE INDEX answer_waiting ON answer (pipeline, answer_seq) WHERE sent_ms IS NULL;

CREATE TABLE taught (    -- events whose answer is in a command
  event_id INTEGER PRIMARY KEY REFERENCES event,
  command TEXT NOT NULL
) STRICT;

CREATE TABLE known (     -- events whose truth is known: they measure people alone
  event_id INTEGER PRIMARY KEY REFERENCES event,
  case_id TEXT NOT NULL,               -- the episode that they were, all together
  truth TEXT NOT NULL,                 -- anomaly | normal
  made INTEGER NOT NULL                -- 1: the pipeline did not ask about it
) STRICT;
CREATE INDEX known_case ON known (case_id);

CREATE TABLE session (
  token_hash TEXT PRIMARY KEY,
  reviewer TEXT NOT NULL, role TEXT NOT NULL,
  kind TEXT NOT NULL,                  -- cookie | link
  expires_ms INTEGER NOT NULL
) STRICT;
"""

_TRIGGERS = tuple(
    f"""CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} rows are never changed'); END;"""
    for table in _APPEND_ONLY
    for verb in ("update", "delete")
)

SCHEMA = (
    *(one for one in _TABLES.split(";\n") if one.strip()),
    *_TRIGGERS,
)
