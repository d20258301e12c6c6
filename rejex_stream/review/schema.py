"""The tables of the review store, and what brings those of earlier versions up to date.

Facts (`event`, `label`, `label_event`, `audit`) are only ever inserted; triggers refuse anything
else. Everything else is a view of those facts, or short-lived coordination (leases, snoozes).
"""

__all__ = ["ADDED", "HOURS_OF_MINUTES", "SCHEMA", "SCHEMA_VERSION"]

SCHEMA_VERSION = 7

# What earlier versions lack, besides whole tables.
ADDED = (
    *(("episode", column) for column in ("incident TEXT", "severity REAL", "assigned TEXT")),
    ("event", "severity REAL"),
    ("event", "reading INTEGER NOT NULL DEFAULT 0"),
    ("counted", "last_reading INTEGER NOT NULL DEFAULT 0"),
)

_APPEND_ONLY = ("label", "label_event", "audit")

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE IF NOT EXISTS sensor (
  sensor_id INTEGER PRIMARY KEY,
  stream_key TEXT NOT NULL,
  sensor TEXT NOT NULL,
  grp TEXT NOT NULL,                -- text before the first slash, for grouping on screens
  pipeline TEXT NOT NULL DEFAULT '',
  channels TEXT NOT NULL DEFAULT '[]',
  last_ms INTEGER, epoch INTEGER,
  window_len INTEGER, n_anomalies INTEGER, band_lower INTEGER, band_upper INTEGER, tolerance REAL,
  UNIQUE (stream_key, sensor)
) STRICT;

CREATE TABLE IF NOT EXISTS episode (
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
  snooze_until_ms INTEGER, snooze_growth INTEGER NOT NULL DEFAULT 0, snooze_by TEXT,
  incident TEXT,                    -- the incident that its events are of: one item for all
  severity REAL,                    -- the largest of its events
  assigned TEXT                     -- whose it is, until somebody gives it to another
) STRICT;
CREATE INDEX IF NOT EXISTS episode_incident ON episode (incident) WHERE incident IS NOT NULL;
CREATE INDEX IF NOT EXISTS episode_queue ON episode (status, priority DESC, received_ms);
CREATE INDEX IF NOT EXISTS episode_sensor ON episode (sensor_id, status, end_ms);
CREATE INDEX IF NOT EXISTS episode_lease ON episode (lease_owner) WHERE lease_owner IS NOT NULL;

CREATE TABLE IF NOT EXISTS event (
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
  UNIQUE (topic, partition, offset, reading)
) STRICT;
CREATE INDEX IF NOT EXISTS event_episode ON event (episode_id, event_time_ms, event_id);

CREATE TABLE IF NOT EXISTS label (
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
CREATE INDEX IF NOT EXISTS label_episode ON label (episode_id);
CREATE INDEX IF NOT EXISTS label_time ON label (created_ms);

CREATE TABLE IF NOT EXISTS label_event (
  event_id INTEGER NOT NULL REFERENCES event,
  label_seq INTEGER NOT NULL REFERENCES label,
  PRIMARY KEY (event_id, label_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS outbox (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  label_id TEXT NOT NULL,
  key BLOB NOT NULL, value BLOB NOT NULL,
  sent_ms INTEGER, place TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_pending ON outbox (seq) WHERE sent_ms IS NULL;

CREATE TABLE IF NOT EXISTS action (    -- what can be undone, and what a retried request gets back
  action_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  request_id TEXT NOT NULL UNIQUE,
  reviewer TEXT NOT NULL,
  kind TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  undone INTEGER NOT NULL DEFAULT 0,
  payload TEXT NOT NULL,
  result TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS action_undo ON action (reviewer, undone, action_seq);

CREATE TABLE IF NOT EXISTS audit (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, seq);

CREATE TABLE IF NOT EXISTS consumed (  -- where to go on reading, moved with what was read
  topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)
) STRICT;

CREATE TABLE IF NOT EXISTS counted (   -- verdicts already in the totals, per input partition
  topic TEXT NOT NULL, partition INTEGER NOT NULL, last_offset INTEGER NOT NULL,
  last_reading INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)
) STRICT;

CREATE TABLE IF NOT EXISTS point (     -- the series around events, full resolution, a ring
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  t_ms INTEGER NOT NULL,
  channel_values BLOB,                 -- float64, one per channel, NaN where missing
  score REAL,
  label INTEGER,
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hour (      -- exact counts per hour; those forgotten in one sum
  sensor_id INTEGER NOT NULL REFERENCES sensor, t_ms INTEGER NOT NULL,
  normal INTEGER NOT NULL DEFAULT 0, anomaly INTEGER NOT NULL DEFAULT 0,
  rejected INTEGER NOT NULL DEFAULT 0,
  banded INTEGER NOT NULL DEFAULT 0, ambiguous INTEGER NOT NULL DEFAULT 0,
  expected REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS minute (    -- exact counts and extremes per minute, kept for weeks
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  t_ms INTEGER NOT NULL,
  normal INTEGER NOT NULL DEFAULT 0, anomaly INTEGER NOT NULL DEFAULT 0,
  rejected INTEGER NOT NULL DEFAULT 0,
  banded INTEGER NOT NULL DEFAULT 0,   -- events judged by rank and band: what theory speaks about
  ambiguous INTEGER NOT NULL DEFAULT 0,
  expected REAL NOT NULL DEFAULT 0,    -- sum of R over the banded events
  lows BLOB, highs BLOB, score_low REAL, score_high REAL,
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS minute_time ON minute (t_ms);

CREATE TABLE IF NOT EXISTS mark (      -- model swaps and alarms, for the plots
  pipeline TEXT NOT NULL,
  stream_key TEXT NOT NULL,            -- empty for the whole pipeline
  t_ms INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
  PRIMARY KEY (pipeline, stream_key, t_ms, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS rate (     -- what the monitors said, as time went by
  pipeline TEXT NOT NULL,
  stream_key TEXT NOT NULL,            -- empty for the whole pipeline
  t_ms INTEGER NOT NULL,               -- event time
  rate_seq INTEGER NOT NULL,           -- order of arrival
  value BLOB NOT NULL,                 -- the sample, as JSON
  PRIMARY KEY (pipeline, stream_key, t_ms)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rate_order ON rate (rate_seq);

CREATE TABLE IF NOT EXISTS monitor (   -- state of the monitors, so that a restart goes on
  pipeline TEXT PRIMARY KEY, state BLOB NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS incident (  -- each as it stands
  incident TEXT PRIMARY KEY,
  pipeline TEXT NOT NULL, stream_key TEXT NOT NULL, state TEXT NOT NULL,
  version INTEGER NOT NULL, severity REAL NOT NULL, changed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS incident_change (
  change_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  incident TEXT NOT NULL, version INTEGER NOT NULL,
  record BLOB NOT NULL,                -- as published
  UNIQUE (incident, version)
) STRICT;

CREATE TABLE IF NOT EXISTS reply (     -- what became of commands, whoever gave them
  reply_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL, position TEXT NOT NULL,
  accepted INTEGER NOT NULL, said TEXT NOT NULL,
  UNIQUE (command, position)
) STRICT;

CREATE TABLE IF NOT EXISTS answer (    -- commands given here, and those on their way out
  answer_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL UNIQUE,        -- made of the request: a retry says nothing new
  incident TEXT NOT NULL,              -- empty: answers to events, which teach
  pipeline TEXT NOT NULL,
  record BLOB NOT NULL,                -- the command as published
  sent_ms INTEGER
) STRICT;

CREATE INDEX IF NOT EXISTS answer_waiting ON answer (pipeline, answer_seq) WHERE sent_ms IS NULL;

CREATE TABLE IF NOT EXISTS taught (    -- events whose answer is in a command
  event_id INTEGER PRIMARY KEY REFERENCES event,
  command TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS known (     -- events whose truth is known: they measure people alone
  event_id INTEGER PRIMARY KEY REFERENCES event,
  case_id TEXT NOT NULL,               -- the episode that they were, all together
  truth TEXT NOT NULL,                 -- anomaly | normal
  made INTEGER NOT NULL                -- 1: the pipeline did not ask about it
) STRICT;
CREATE INDEX IF NOT EXISTS known_case ON known (case_id);

CREATE TABLE IF NOT EXISTS saved_view (  -- of the queue, by the name somebody gave it
  reviewer TEXT NOT NULL, name TEXT NOT NULL,
  address TEXT NOT NULL,               -- what stands behind /queue?
  PRIMARY KEY (reviewer, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS session (
  token_hash TEXT PRIMARY KEY,
  reviewer TEXT NOT NULL, role TEXT NOT NULL,
  kind TEXT NOT NULL,                  -- cookie | link
  expires_ms INTEGER NOT NULL
) STRICT;
"""

_TRIGGERS = "\n".join(
    f"""CREATE TRIGGER IF NOT EXISTS {table}_no_{verb} BEFORE {verb.upper()} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} rows are never changed'); END;"""
    for table in _APPEND_ONLY
    for verb in ("update", "delete")
)

# What versions 1 and 2 counted by the minute alone; nothing in a new store.
HOURS_OF_MINUTES = """
INSERT OR IGNORE INTO hour SELECT sensor_id, t_ms - ((t_ms % 3600000) + 3600000) % 3600000,
  sum(normal), sum(anomaly), sum(rejected), sum(banded), sum(ambiguous), sum(expected)
FROM minute WHERE normal + anomaly + rejected > 0 GROUP BY 1, 2;
"""

SCHEMA = f"{_TABLES}\n{_TRIGGERS}"
