/** The small shop that a first start streams, so that there is something to play with. */
import type { Client } from 'pg'

/** The names of the demo's database, tables, source and sink. */
export const DEMO = {
  database: 'demo',
  slot: 'tailrace_demo',
  publication: 'tailrace_demo',
  sink: 'demo',
  account: 'demo',
  role: 'demo',
} as const

const TABLES = `
create table customer (
  id int generated always as identity primary key,
  name text not null,
  email text not null unique,
  created_at timestamptz not null default now()
);
create table product (
  id int generated always as identity primary key,
  title text not null,
  price numeric(10, 2) not null,
  tags text[] not null default '{}',
  updated_at timestamptz not null default now()
);
create table purchase (
  id bigint generated always as identity primary key,
  customer_id int not null references customer,
  product_id int not null references product,
  quantity int not null check (quantity > 0),
  details jsonb not null default '{}',
  placed_at timestamptz not null default now()
);
alter table product replica identity full; -- so that an update shows the old values in "changes"
`

/** Made after the slot, so that the first receive has something to hand out. */
const ROWS = `
insert into customer (name, email) values
  ('Ada', 'ada@example.com'), ('Grace', 'grace@example.com'), ('Edsger', 'edsger@example.com');
insert into product (title, price, tags) values
  ('Lamp', 19.90, '{home,light}'), ('Desk', 249.00, '{office}'), ('Notebook', 3.50, '{office,paper}');
insert into purchase (customer_id, product_id, quantity, details) values
  (1, 1, 2, '{"gift": true}'), (2, 3, 10, '{}'), (3, 2, 1, '{"floor": 4}');
update product set price = 17.90, updated_at = now() where title = 'Lamp';
`

/** Makes the tables of the shop. */
export async function createDemoTables(client: Client): Promise<void> {
  await client.query(TABLES)
}

/** Fills them with a few rows. */
export async function fillDemoTables(client: Client): Promise<void> {
  await client.query(`begin; ${ROWS} commit`)
}

/**
 * Makes some changes as a shop does: purchases, a price that moves, a customer's new address, one return. @returns how many rows
 * changed
 */
export async function writeDemoChanges(client: Client): Promise<number> {
  await client.query('begin')
  const bought = await client.query(`
    insert into purchase (customer_id, product_id, quantity, details)
    select c.id, p.id, 1 + floor(random() * 5)::int, jsonb_build_object('gift', random() < 0.3)
    from customer c cross join product p order by random() limit 3`)
  const repriced = await client.query(`
    update product set price = round((price * (0.9 + random() * 0.2))::numeric, 2), updated_at = now()
    where id = (select id from product order by random() limit 1)`)
  const moved = await client.query(`
    update customer set email = lower(name) || '+' || floor(random() * 1e9) || '@example.com'
    where id = (select id from customer order by random() limit 1)`)
  const returned = await client.query(
    `delete from purchase where id = (select min(id) from purchase) and (select count(*) from purchase) > 5`,
  )
  await client.query('commit')
  return (bought.rowCount ?? 0) + (repriced.rowCount ?? 0) + (moved.rowCount ?? 0) + (returned.rowCount ?? 0)
}
