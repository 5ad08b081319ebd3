-- schema: engine
-- Jobs for those who have nothing but SQL.

-- `insert into awa.jobs (kind, queue, args, ..)`: what a job is made of may be given, what becomes of it may not. Runs with
-- the rights of whoever inserts, who must be allowed to call awa.enqueue.
create function awa.insert_job() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_decided constant text := case
    when new.id is not null then 'id'
    when new.state is not null then 'state'
    when new.attempt is not null then 'attempt'
    when new.run_lease is not null then 'run_lease'
    when new.attempted_at is not null then 'attempted_at'
    when new.heartbeat_at is not null then 'heartbeat_at'
    when new.deadline_at is not null then 'deadline_at'
    when new.finalized_at is not null then 'finalized_at'
    when new.created_at is not null then 'created_at'
    when new.errors is not null then 'errors'
    when new.progress is not null then 'progress'
  end;
  v_problem text;
begin
  if v_decided is not null then
    raise exception using
      errcode = '22023',
      message = format('%s: is not for you to set', v_decided),
      hint = 'Give kind, queue, args, priority, max_attempts, run_at, metadata, tags or ordering_key.';
  end if;
  new.args := coalesce(new.args, '{}') #> '{}'; -- as it is, not as a table keeps it
  -- 1e131000 takes few bytes here and as many as its digits as text. What JavaScript knows grows less: 1e308, say.
  if octet_length(new.args::text) > least(16777216, 32 * pg_column_size(new.args) + 512) then
    raise exception using
      errcode = '22023',
      message = 'args: must be at most 16 MiB of JSON, without numbers of thousands of digits';
  end if;
  if octet_length(new.metadata::text) > 1048576 then
    raise exception using errcode = '22023', message = 'metadata: must be at most 1 MiB of JSON';
  end if;
  -- Also said by awa.enqueue, but of the first of many.
  v_problem := coalesce(
    awa.job_problem(
      new.kind, new.queue, new.priority, new.max_attempts, coalesce(new.run_at, now()), nullif(new.metadata, 'null'), new.tags
    ),
    awa.ordering_key_problem(new.ordering_key)
  );
  if v_problem is not null then
    raise exception using errcode = '22023', message = v_problem;
  end if;
  select e.ids::bigint, e.now, coalesce(new.run_at, e.now) into new.id, new.created_at, new.run_at
  from awa.enqueue(
    jsonb_build_array(jsonb_build_object(
      'kind', new.kind, 'queue', new.queue, 'args', new.args, 'priority', new.priority,
      'max_attempts', new.max_attempts, 'run_at', new.run_at, 'metadata', new.metadata, 'tags', new.tags,
      'ordering_key', new.ordering_key
    ))
  ) e;
  -- For `returning`.
  new.state := case when new.run_at > new.created_at then 'scheduled' else 'available' end;
  new.queue := coalesce(new.queue, 'default');
  new.priority := coalesce(new.priority, 2);
  new.max_attempts := coalesce(new.max_attempts, 25);
  new.attempt := 0;
  new.run_lease := 0;
  new.errors := '[]';
  new.metadata := coalesce(nullif(new.metadata, 'null'), '{}');
  new.tags := coalesce(new.tags, '{}');
  return new;
end
$$;

create trigger insert_job instead of insert on awa/*control*/.jobs for each row execute function awa.insert_job();

create function awa.refuse_job_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = '55000',
    message = format('%s: rows cannot be updated or deleted', 'awa/*control*/.jobs'::regclass),
    hint = format('Call %s or %s.', 'awa.cancel_jobs'::regproc, 'awa.change_jobs'::regproc);
end
$$;

create trigger refuse_job_change instead of update or delete on awa/*control*/.jobs
for each row execute function awa.refuse_job_change();

-- The jobs that have ended, wherever they are kept.
create view awa.terminal_jobs as
select * from awa/*control*/.jobs j where j.state in ('completed', 'failed', 'cancelled');

-- Without it an insert would go through to awa.jobs, and a job begin that was said to have ended.
create function awa.refuse_terminal_job() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using
    errcode = '55000',
    message = 'terminal_jobs: is for reading',
    hint = format('Insert into %s.', 'awa/*control*/.jobs'::regclass);
end
$$;

create trigger refuse_terminal_job instead of insert or update or delete on awa.terminal_jobs
for each row execute function awa.refuse_terminal_job();
