-- What weir_store keeps: records by key, and events apart from them.

CREATE TABLE weir.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO weir.meta VALUES ('identity', replace(gen_random_uuid()::text, '-', ''));

-- Every record but events. A version is new with every change; a record that is not there has version 0.
CREATE TABLE weir.record (key bytea PRIMARY KEY, version bigint NOT NULL, value bytea NOT NULL) WITH (fillfactor = 80);
CREATE SEQUENCE weir.version;

-- Events, a chunk for each run and commit, by the run's id and the first event in it. Ids sort by the time a run was accepted, so a
-- partition holds the runs of some hours and is dropped when the retention of all of them is over.
CREATE TABLE weir.chunk (run bytea NOT NULL, first bigint NOT NULL, value bytea NOT NULL, PRIMARY KEY (run, first)) PARTITION BY RANGE (run);
-- Runs whose events are over and not dropped yet: nobody reads them any more.
CREATE TABLE weir.expired (run bytea PRIMARY KEY);

-- Gateways. A commit takes its gateway's next turn, so that a commit whose outcome is unknown can be asked for, and kept from
-- coming late.
CREATE TABLE weir.gateway (
  boot text PRIMARY KEY, name text NOT NULL, turn bigint NOT NULL, beat timestamptz NOT NULL, gone boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Runs that some gateway follows although another one writes them. Losing it costs only the hint.
CREATE UNLOGGED TABLE weir.follow (run bytea PRIMARY KEY, until timestamptz NOT NULL);

-- Makes the partition that a run's events belong to: six hours of ids (48 bits of milliseconds, then random).
CREATE FUNCTION weir.make_partition(p_run bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  span CONSTANT bigint := 6 * 3600 * 1000;
  ms bigint := ('x' || encode(substring(p_run FROM 1 FOR 6), 'hex'))::bit(48)::bigint;
  start bigint := ms / span * span;
  lower_bound text := '\x' || lpad(to_hex(start), 12, '0') || repeat('00', 10);
  upper_bound text := '\x' || lpad(to_hex(start + span), 12, '0') || repeat('00', 10);
BEGIN
  -- One at a time: two that make one partition would not see each other.
  PERFORM pg_advisory_xact_lock(7311604, 2);
  EXECUTE format('CREATE TABLE IF NOT EXISTS weir.%I PARTITION OF weir.chunk FOR VALUES FROM (%L) TO (%L)',
    'chunk_' || lpad(to_hex(start), 12, '0'), lower_bound, upper_bound);
END $$;

-- Drops the oldest partition if the retention of all runs in it is over; its name, or null.
CREATE FUNCTION weir.drop_partition() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  oldest text;
  start bigint;
  kept boolean;
BEGIN
  SELECT c.relname INTO oldest FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'weir.chunk'::regclass ORDER BY c.relname LIMIT 1;
  IF oldest IS NULL THEN RETURN NULL; END IF;
  start := ('x' || substring(oldest FROM 7))::bit(48)::bigint;
  -- New runs may still come to it.
  IF start + 7 * 3600 * 1000 > extract(epoch FROM clock_timestamp()) * 1000 THEN RETURN NULL; END IF;
  FOR attempt IN 1..2 LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM weir.%I c WHERE NOT EXISTS (SELECT FROM weir.expired e WHERE e.run = c.run))', oldest)
      INTO kept;
    IF kept THEN RETURN NULL; END IF;
    -- The second look is under a lock that nobody can write through.
    IF attempt = 1 THEN
      SET LOCAL lock_timeout = '2s';
      LOCK TABLE weir.chunk IN ACCESS EXCLUSIVE MODE;
    END IF;
  END LOOP;
  EXECUTE format('DELETE FROM weir.expired e USING (SELECT DISTINCT run FROM weir.%I) c WHERE e.run = c.run', oldest);
  EXECUTE format('DROP TABLE weir.%I', oldest);
  RETURN oldest;
END $$;

-- Carries a group of writes out, if all that it rests on is still as its gateway read it; else changes nothing and answers with what
-- changed. Rows are locked in the order of their keys before they are compared, so the comparison holds until the end.
-- Answers: (0, -, new version, -), or (1, key, version, value) and (2, run, first of the last chunk, value) for all that differ.
CREATE FUNCTION weir.commit(
  p_boot text, p_turn bigint,
  p_keys bytea[], p_versions bigint[], p_runs bytea[], p_lasts bigint[],
  p_new_keys bytea[], p_new_values bytea[], p_set_keys bytea[], p_set_values bytea[], p_put_keys bytea[], p_put_values bytea[],
  p_drop_keys bytea[],
  p_chunk_runs bytea[], p_chunk_firsts bigint[], p_chunk_values bytea[], p_drop_runs bytea[], p_drop_firsts bigint[],
  p_expired bytea[]
) RETURNS TABLE (kind int, key bytea, version bigint, value bytea) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  stamp bigint;
  writes boolean := cardinality(p_new_keys) + cardinality(p_set_keys) + cardinality(p_put_keys) + cardinality(p_drop_keys)
    + cardinality(p_chunk_runs) + cardinality(p_drop_runs) + cardinality(p_expired) > 0;
  differs boolean := false;
BEGIN
  IF writes THEN
    PERFORM FROM weir.record r WHERE r.key = ANY (p_keys) ORDER BY r.key FOR NO KEY UPDATE;
  END IF;
  RETURN QUERY
    SELECT 1, p.key, coalesce(r.version, 0), r.value
    FROM unnest(p_keys, p_versions) AS p (key, version) LEFT JOIN weir.record r ON r.key = p.key
    WHERE coalesce(r.version, 0) <> p.version;
  differs := FOUND;
  RETURN QUERY
    SELECT 2, p.run, coalesce(c.first, 0), c.value
    FROM unnest(p_runs, p_lasts) AS p (run, last)
    LEFT JOIN LATERAL (SELECT c.first, c.value FROM weir.chunk c WHERE c.run = p.run ORDER BY c.first DESC LIMIT 1) c ON true
    WHERE coalesce(c.first, 0) <> p.last;
  IF FOUND OR differs THEN RETURN; END IF;
  stamp := 0;
  IF writes THEN
    UPDATE weir.gateway SET turn = p_turn WHERE boot = p_boot AND turn = p_turn - 1;
    IF NOT FOUND THEN RAISE EXCEPTION 'it is not turn % of gateway %', p_turn, p_boot USING ERRCODE = 'WE001'; END IF;
    stamp := nextval('weir.version');
    -- What was not there must still not be: the key is unique, and a rival's fails or waits.
    INSERT INTO weir.record (key, version, value)
      SELECT k, stamp, v FROM unnest(p_new_keys, p_new_values) AS u (k, v) ORDER BY k;
    UPDATE weir.record r SET version = stamp, value = u.v FROM unnest(p_set_keys, p_set_values) AS u (k, v) WHERE r.key = u.k;
    INSERT INTO weir.record (key, version, value)
      SELECT k, stamp, v FROM unnest(p_put_keys, p_put_values) AS u (k, v) ORDER BY k
      ON CONFLICT (key) DO UPDATE SET version = excluded.version, value = excluded.value;
    DELETE FROM weir.record r WHERE r.key = ANY (p_drop_keys);
    INSERT INTO weir.chunk (run, first, value)
      SELECT r, f, v FROM unnest(p_chunk_runs, p_chunk_firsts, p_chunk_values) AS u (r, f, v) ORDER BY r, f;
    DELETE FROM weir.chunk c USING unnest(p_drop_runs, p_drop_firsts) AS u (r, f) WHERE c.run = u.r AND c.first = u.f;
    INSERT INTO weir.expired (run) SELECT e FROM unnest(p_expired) AS u (e) ON CONFLICT DO NOTHING;
    PERFORM pg_notify('weir', 'grown ' || encode(f.run, 'hex')) FROM weir.follow f
      WHERE f.run = ANY (p_chunk_runs) AND f.until > clock_timestamp();
    -- 'q': a cancellation was recorded.
    PERFORM pg_notify('weir', 'cancelled ' || encode(substring(k FROM 2), 'hex')) FROM unnest(p_put_keys || p_new_keys) AS u (k)
      WHERE get_byte(k, 0) = 113;
  END IF;
  RETURN QUERY SELECT 0, NULL::bytea, stamp, NULL::bytea;
END $$;
