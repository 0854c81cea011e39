-- Attune's cache file, schema version 4. cache/FORMAT.md explains it and what each `sum` covers.
-- Rows are facts: they are inserted, joined with an equal key's row by a commutative rule, and (measurements
-- least of all) never changed. Keys are hashes or UUIDs, so the union of two files is a merge.
-- auto_vacuum is INCREMENTAL; it must be set before the transaction that runs this.
PRAGMA application_id = 1096045646;  -- "ATTN"
PRAGMA user_version = 4;

CREATE TABLE meta (
  name  TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL
) STRICT;

-- What a time depends on besides code and problem.
CREATE TABLE env (
  digest   TEXT PRIMARY KEY NOT NULL,  -- of device and protocol
  device   TEXT NOT NULL,              -- Device::identity()
  hardware TEXT NOT NULL,              -- device less its driver
  protocol TEXT NOT NULL,
  sum      INTEGER NOT NULL
) STRICT;

-- What a spec's hash stands for. A hash that has no row here was stored before texts were.
CREATE TABLE spec (
  hash TEXT PRIMARY KEY NOT NULL,  -- spec_hash()
  text TEXT NOT NULL,              -- canonical_text()
  sum  INTEGER NOT NULL
) STRICT;

CREATE TABLE problem (
  digest    TEXT PRIMARY KEY NOT NULL,  -- of all below
  spec_hash TEXT NOT NULL,
  pass      TEXT NOT NULL,              -- "forward", "backward"
  batch     INTEGER NOT NULL,
  heads     INTEGER NOT NULL,
  kv_heads  INTEGER NOT NULL,
  q_len     INTEGER NOT NULL,
  kv_len    INTEGER NOT NULL,
  sum       INTEGER NOT NULL
) STRICT;
CREATE INDEX problem_spec ON problem (spec_hash);

-- What the tensors that a problem's mask reads were like. A problem without a row here was measured
-- on what was drawn when nobody said, or reads none.
CREATE TABLE mask_data (
  problem TEXT PRIMARY KEY NOT NULL,
  label   TEXT NOT NULL,  -- "t0=segments(mean=700)"
  live    REAL NOT NULL,  -- share of the tiles with a live element; negative: not known
  full    REAL NOT NULL,  -- without a dead one
  sum     INTEGER NOT NULL
) STRICT;

-- What the lengths of a problem's packed or paged sequences were like, coarsely. A problem without a row
-- here was measured before this was kept, or has none.
CREATE TABLE length_data (
  problem   TEXT PRIMARY KEY NOT NULL,
  longest   REAL NOT NULL,     -- the longest sequence over the mean one
  filled    REAL NOT NULL,     -- keys of all sequences over the rows that there is room for
  page_size INTEGER NOT NULL,  -- 0: no pages
  sum       INTEGER NOT NULL
) STRICT;

-- A plan of a spec as one compiler built it for one target. body_hash and target are empty as long as
-- only its measurements are known.
CREATE TABLE candidate (
  digest    TEXT PRIMARY KEY NOT NULL,  -- BuildKey::digest()
  spec_hash TEXT NOT NULL,
  plan      TEXT NOT NULL,
  body_hash TEXT NOT NULL,
  compiler  TEXT NOT NULL,
  target    TEXT NOT NULL,
  sum       INTEGER NOT NULL
) STRICT;

-- Machine code by content.
CREATE TABLE cubin (
  hash                TEXT PRIMARY KEY NOT NULL,  -- XXH3-128 of image
  length              INTEGER NOT NULL,
  registers           INTEGER NOT NULL,
  spill_store_bytes   INTEGER NOT NULL,
  spill_load_bytes    INTEGER NOT NULL,
  stack_bytes         INTEGER NOT NULL,
  static_shared_bytes INTEGER NOT NULL,
  sum                 INTEGER NOT NULL,  -- of all above
  last_used           INTEGER NOT NULL,  -- Unix seconds; what eviction goes by
  pinned              INTEGER NOT NULL,
  image               BLOB NOT NULL
) STRICT;

-- Which code a candidate compiled to.
CREATE TABLE build (
  candidate       TEXT PRIMARY KEY NOT NULL,
  cubin           TEXT NOT NULL,
  compile_seconds REAL NOT NULL,
  sum             INTEGER NOT NULL
) STRICT;
CREATE INDEX build_cubin ON build (cubin);

-- Append-only.
CREATE TABLE measurement (
  uuid         TEXT PRIMARY KEY NOT NULL,
  env          TEXT NOT NULL,
  problem      TEXT NOT NULL,
  candidate    TEXT NOT NULL,
  median_us    REAL NOT NULL,
  spread_us    REAL NOT NULL,
  samples      INTEGER NOT NULL,
  threads      INTEGER NOT NULL,
  registers    INTEGER NOT NULL,
  shared_bytes INTEGER NOT NULL,
  measured_at  TEXT NOT NULL,  -- ISO 8601, UTC
  conditions   TEXT NOT NULL,  -- JSON
  sum          INTEGER NOT NULL
) STRICT;
CREATE INDEX measurement_problem ON measurement (problem, env);

-- Candidates that are never tried again, and why.
CREATE TABLE quarantine (
  env       TEXT NOT NULL,
  problem   TEXT NOT NULL,
  candidate TEXT NOT NULL,
  reason    TEXT NOT NULL,
  detail    TEXT NOT NULL,
  noted_at  TEXT NOT NULL,
  sum       INTEGER NOT NULL,
  PRIMARY KEY (env, problem, candidate)
) STRICT;

-- Who is compiling what now. Says nothing about the past, so it is never merged.
CREATE TABLE lease (
  name       TEXT PRIMARY KEY NOT NULL,
  owner      TEXT NOT NULL,
  taken_at   INTEGER NOT NULL,  -- Unix milliseconds
  expires_at INTEGER NOT NULL
) STRICT;
