-- schema: control
-- The control plane: what every storage engine shares.

do $$
begin
  if current_setting('server_version_num')::integer < 150000 then
    raise exception using
      errcode = '0A000',
      message = format('PostgreSQL 15 or later is needed, this is %s', current_setting('server_version'));
  end if;
  -- Payloads are JSON of any characters, and lanes and locks are named by hashes that clients work out as well.
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception using
      errcode = '0A000',
      message = format(
        'the encoding of the database is %s and must be UTF8: create it with ENCODING ''UTF8'' TEMPLATE template0',
        current_setting('server_encoding')
      );
  end if;
end
$$;

create schema if not exists awa;

-- The declaration order is the order in which the operator's surface lists states.
create type awa.job_state as enum (
  'scheduled',
  'available',
  'running',
  'completed',
  'retryable',
  'failed',
  'cancelled',
  'waiting_external'
);

-- The delay before the attempt after a failed one: 2^attempt seconds, a quarter of it added at random, at most a day.
-- Computed in numbers: an interval built from text breaks on small fractions written in scientific notation.
create function awa.backoff(p_attempt integer) returns interval
language sql volatile parallel safe
as $$
  select make_interval(secs => least(power(2, least(p_attempt, 30)) * (1 + 0.25 * random()), 86400))
$$;

-- What an operator or a worker's code has said of a queue. A queue needs no row: absent means all defaults.
create table awa.queues (
  name text primary key check (char_length(name) between 1 and 200),
  -- Paused when set: nothing of the queue is claimed or promoted.
  paused_at timestamptz,
  paused_by text,
  -- Over how many lanes a priority of the queue is spread.
  shards smallint not null default 1 check (shards between 1 and 64),
  -- How long ended jobs are kept; null for the default of the workers.
  completed_retention interval,
  failed_retention interval,
  cancelled_retention interval,
  -- Whether jobs that fail for good become dead letters; null for the default of the workers.
  dlq boolean,
  dlq_retention interval,
  -- What overrides the workers' own settings while they run.
  overrides jsonb not null default '{}' check (jsonb_typeof(overrides) = 'object'),
  updated_at timestamptz not null default clock_timestamp()
);
