-- schema: control
-- The control plane: what every storage engine shares.

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
