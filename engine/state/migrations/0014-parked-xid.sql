-- The transaction of a parked message, so that a look-up of its row waits until what that did is visible (0: not known).
alter table parked add column xid bigint not null default 0;
