/**
 * The workload: what a busy application does to one table. Sessions write on the server's side (a procedure that commits
 * by itself), so that no client's round trip is measured and the same number of changes is made every time.
 *
 * A row has about 400 bytes; inserts, updates and deletes come 10:4:1, in transactions of 1 to 5 changes. A session
 * updates and deletes rows of its own, so sessions wait for each other only where Postgres makes them.
 */
import { Client } from 'pg'
import type { Task } from './system.ts'

export const TABLE = 'measured'
/** In the publication too; nobody writes it. */
export const IDLE_TABLE = 'public.idle'
export const PUBLICATION = 'bench'

/** `written_at` is the moment of the statement by the server's clock: a reader on the same machine can tell its delay. */
const DDL = `
create table ${TABLE} (
  id serial primary key,
  title text not null,
  price numeric(12, 2) not null,
  written_at timestamptz not null,
  attributes jsonb not null,
  created_at timestamp not null,
  updated_at timestamp not null
);

-- Writes exactly "changes" changes; "per_second" of null: as fast as it goes.
create procedure write_changes(changes int, per_second float8, session int) language plpgsql as $$
declare
  filler constant text := repeat('The quick brown fox jumps over the lazy dog. ', 12);
  own int[] := array_fill(0, array[1000]); -- the ids this session may change: a ring, 0 where none stands
  top int := 0;
  done int := 0;
  size int;
  dice float8;
  at int;
  written int;
  started timestamptz := clock_timestamp();
  ahead float8;
begin
  perform setseed(session / 1000.0);
  while done < changes loop
    size := least(1 + floor(random() * 5)::int, changes - done);
    for i in 1..size loop
      dice := random() * 15;
      at := 1 + floor(random() * 1000)::int;
      while done >= 100 and own[at] = 0 loop at := 1 + at % 1000; end loop;
      if dice < 10 or done < 100 then
        insert into ${TABLE} (title, price, written_at, attributes, created_at, updated_at)
        values (substr(filler, 1 + floor(random() * 200)::int, 185 + floor(random() * 60)::int), round((random() * 10000)::numeric, 2), clock_timestamp(),
                jsonb_build_object('colour', 'deep blue', 'weight', floor(random() * 5000), 'origin', 'warehouse ' || session, 'tags', jsonb_build_array('new', 'sale', 'heavy')),
                localtimestamp, localtimestamp)
        returning id into written;
        top := 1 + top % 1000;
        own[top] := written;
      elsif dice < 14 then
        update ${TABLE} set price = price + 1, written_at = clock_timestamp(), updated_at = localtimestamp where id = own[at];
      else
        delete from ${TABLE} where id = own[at];
        own[at] := 0;
      end if;
    end loop;
    commit;
    done := done + size;
    if per_second is not null then
      ahead := done / per_second - extract(epoch from clock_timestamp() - started);
      if ahead > 0 then perform pg_sleep(ahead); end if;
    end if;
  end loop;
end $$;

create table ${IDLE_TABLE} (id int primary key);
create publication ${PUBLICATION} for table ${TABLE}, ${IDLE_TABLE};
`

export async function createWorkload(url: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(DDL)
  } finally {
    await client.end()
  }
}

export type Load = Readonly<{
  url: string
  changes: number
  sessions: number
  /** of all sessions together; absent: as fast as it goes */
  perSecond?: number
  /** false: the server doesn't wait for the disk at each commit; the write-ahead log is the same */
  waitForDisk: boolean
}>

/** @returns seconds from the first session's start to the last one's end */
export async function writeWorkload({ url, changes, sessions, perSecond, waitForDisk }: Load): Promise<number> {
  const clients = Array.from({ length: sessions }, () => new Client({ connectionString: url }))
  try {
    await Promise.all(clients.map((client) => client.connect()))
    await Promise.all(clients.map((client) => client.query(`set synchronous_commit = ${waitForDisk ? 'on' : 'off'}`)))
    const started = performance.now()
    await Promise.all(
      clients.map((client, session) => {
        const share = Math.floor(changes / sessions) + (session < changes % sessions ? 1 : 0)
        return client.query('call write_changes($1, $2, $3)', [share, perSecond === undefined ? null : perSecond / sessions, session])
      }),
    )
    return (performance.now() - started) / 1000
  } finally {
    await Promise.all(clients.map((client) => client.end()))
  }
}

/** The task of reading what the workload writes. @property changes absent: all that come, until it is closed */
export const workloadTask = ({
  changes = Infinity,
  recordDelays = false,
  ...task
}: Pick<Task, 'database' | 'slot'> & Partial<Task>): Task => ({
  ...{ publication: PUBLICATION, table: `public.${TABLE}`, changes, recordDelays },
  ...task,
})
