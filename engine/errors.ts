/** Every failure Tailrace reports: one class, one table. A released code is never renamed or reused.
 *  The error catalogue in docs/errors.md is generated from the table. Nothing here does I/O. */

type Row = Readonly<{
  /** whether trying the same thing again can help */
  retry: boolean
  /** HTTP status when the error answers a request */
  status: number
  /** what happened, in one sentence */
  meaning: string
  /** what the user does about it */
  remedy: string
}>

/** A source that stopped goes on when its user says so. */
const RETRY_SOURCE = 'Then let the source go on: npx tailrace source retry NAME, with the name of the database.'
/** A source goes on by itself after a failure that may last. */
const TRIED_AGAIN =
  'Nothing is lost: the source tries again by itself at least every few minutes. To try at once, run npx tailrace source retry NAME, with the name of the database.'
/** A user accepts that changes are missing, and has the rows sent again. */
const ACCEPT_GAP =
  'npx tailrace source accept-gap NAME, with the name of the database. Then send the rows of its tables again: touch them by an UPDATE, which need not change anything.'

/** A failure that comes again until somebody changes something. */
const final = (status: number, meaning: string, remedy: string): Row => ({ retry: false, status, meaning, remedy })
/** A failure that can pass by itself. */
const retry = (status: number, meaning: string, remedy: string): Row => ({ retry: true, status, meaning, remedy })

// prettier-ignore
/** Each code with its HTTP status, what happened, and what to do. */
export const ERRORS = {
  // ── requests ────────────────────────────────────────────────────────────────────────────────────
  REQUEST_INVALID: final(400, 'A parameter or the body of a request has the wrong form.',
    'The summary names the parameter, what was expected and what came. Correct the request.'),
  REQUEST_UNPARSABLE: final(400, 'The body of a request is not valid JSON.', 'Send a JSON object in UTF-8.'),
  ARGUMENT_INVALID: final(400, 'A command got an argument, or a file, that it can’t use.',
    'The message names the argument or file and what is wrong with it. Run the command with --help to see what it takes.'),
  TOKEN_INVALID: final(401, 'The request has no API token, or an API token that is not known.',
    'Send the header "Authorization: Bearer <API token>" with a token of the account.'),
  SCOPE_MISSING: final(403, 'The API token, or the user, may not do this: it lacks the scope that the request needs.',
    'The summary and required_scope name the scope. Use a token that has it; whoever has a token with the scope admin can create one: npx tailrace token create, or POST /api/api_keys.'),
  SIGN_IN_FAILED: final(401, 'Nobody signs in so: email or password is wrong, the invitation is not good any more, or there is no session.',
    'Check email and password. An admin of the account can invite you again.'),
  SIGN_IN_BUSY: retry(429, 'Too many passwords are being checked at the moment.', 'Try again in some seconds.'),
  SETUP_REFUSED: final(403, 'The first admin can’t be set up so: there is an admin already, or the set-up code is another one.',
    'Run npx tailrace user setup-code where the key of the service is: it prints the code. Once there is an admin, that one invites the others.'),
  PASSWORDS_OFF: final(403, 'Nobody signs in by a password here: TAILRACE_PASSWORD_SIGN_IN is false.',
    'Sign in by OIDC: GET /api/session/oidc. Whoever runs the service can set TAILRACE_PASSWORD_SIGN_IN to true and start it again: all passwords are kept.'),
  OIDC_OFF: final(404, 'Sign-in by OIDC is not set up.', 'Sign in with email and password. Whoever runs the service can set TAILRACE_OIDC_ISSUER and the settings that go with it (docs/oidc.md).'),
  OIDC_UNREACHABLE: retry(503, 'The OIDC issuer can’t be reached, does not answer in time, or answers that it can’t serve.',
    'Try again. The log has the reason. Check the issuer, the network and TAILRACE_OIDC_ISSUER. Sessions that have begun go on, and API tokens work as ever.'),
  OIDC_MISCONFIGURED: final(503, 'The settings for OIDC do not fit the issuer, or this installation.',
    'The log has the reason. Compare TAILRACE_OIDC_ISSUER, TAILRACE_OIDC_CLIENT_ID and TAILRACE_OIDC_CLIENT_SECRET with what the issuer says, and TAILRACE_OIDC_ACCOUNT with the accounts.'),
  OIDC_STATE_INVALID: final(401, 'The sign-in by OIDC was not begun in this browser, took more than ten minutes, or was completed before.',
    'Begin again, at the address that TAILRACE_PUBLIC_URL names, with cookies allowed.'),
  OIDC_REFUSED: final(403, 'The OIDC issuer refuses the sign-in, or does not take its code.',
    'The summary has the words of the issuer. Begin again; if it stays so, ask whoever runs the issuer to let you use this client.'),
  OIDC_TOKEN_INVALID: final(401, 'The ID token of the OIDC issuer is not good: signature, issuer, audience, time or nonce is wrong.',
    'Begin again. If it stays so, the summary says what is wrong: compare the settings with the issuer, and the clocks of both.'),
  OIDC_EMAIL_UNVERIFIED: final(403, 'The OIDC issuer tells no email address, or does not say that it is verified.',
    'Verify the address at the issuer. If the issuer never says so, and lets nobody choose an address that is not theirs, set TAILRACE_OIDC_UNVERIFIED_EMAILS to trust.'),
  OIDC_NOT_ALLOWED: final(403, 'The domain of the email address, or the groups at the OIDC issuer, may not sign in here.',
    'Whoever runs the service can add the domain or a group: TAILRACE_OIDC_DOMAINS, TAILRACE_OIDC_GROUPS.'),
  OIDC_NOT_INVITED: final(403, 'The issuer has said who you are, but you are no user here: nobody has invited you, and no group of yours has a role.',
    'An admin of the account can invite your email address: then sign in again. Or whoever runs the service gives a role: TAILRACE_OIDC_ROLES, TAILRACE_OIDC_DEFAULT_ROLE.'),
  OIDC_IDENTITY_TAKEN: final(403, 'The email address is that of a user who is somebody else at the OIDC issuer: it has changed hands.',
    'An admin of the account deletes the user and invites the address again.'),
  PAGE_FOREIGN: final(403, 'A browser sent the request from a page of another site, with the cookie of a session.',
    'Use the pages of the service itself. Programs use an API token.'),
  NOT_FOUND: final(404, 'The account has no resource of this id or name.', 'Check the id or name, and that the API token belongs to the right account.'),
  ROUTE_NOT_FOUND: final(404, 'The API has no such path, or the path does not take this method.', 'GET /api/openapi.json lists every path and its methods.'),
  NOT_ACCEPTABLE: final(406, 'The Accept header of the request excludes JSON, and all answers are JSON.', 'Send "Accept: application/json", or no Accept header.'),
  REQUEST_TOO_SLOW: retry(408, 'The request did not arrive completely within the time limit.',
    'Send the request without pauses, or send smaller ones. The time that a receive waits for messages does not count.'),
  BODY_TOO_LARGE: final(413, 'The body of the request is larger than this path takes.', 'Split the body into several requests.'),
  HEADERS_TOO_LARGE: final(431, 'The headers of the request, with its path, are larger than the service takes: 16 kB, unless its settings say another size.', 'Send fewer or shorter headers.'),
  VALIDATION_FAILED: final(422, 'A resource was refused because a field has a value that is not allowed.',
    'validation_errors names each field and the reason. Correct these fields and send the resource again.'),
  RESOURCE_IN_USE: final(400, 'The HTTP endpoint or database can’t be deleted because sinks use it.',
    'The message names the sinks. Delete them, or edit them to send to another endpoint; then delete the endpoint or database.'),
  DESTINATION_UNSUPPORTED: final(422, 'A configuration file has a sink of a type that this version can’t send to.',
    'The sink is stored as the file has it and stays paused; what is committed waits for it, up to its max_backlog_mb. Resume it when a version that supports the type runs. If you do not want to wait, set its status to disabled, or delete it.'),
  TOO_MANY_WAITING: retry(429, 'The sink has reached max_waiting: that many receive requests already wait for messages.',
    'Wait until one of them ends, or raise max_waiting of the sink.'),
  REPLAY_RUNNING: retry(409, 'Another replay of the same sink is running.',
    'Wait some seconds until that replay has ended, then ask for yours again.'),
  REPLAY_OUT_OF_WINDOW: final(422, 'The replay would begin before the replay window of the sink, and messages from before the window are deleted.',
    'The summary says where the window begins: choose a place in it. To get older rows again, touch them by an UPDATE. For the future raise replay_window of the sink; it keeps at most 1 GB.'),
  BACKFILL_REFUSED: final(422, 'A table can’t be backfilled: it does not exist, is not in the publication, or has no key to read it by.',
    'The message says which, and what to change in the source database or in the backfill.'),
  BACKFILL_INTERRUPTED: retry(503, 'A page of a backfill could not be read or written.',
    'Nothing is lost: the backfill goes on by itself behind its last durable page.'),
  ACK_NOT_DURABLE: retry(503, 'The acknowledgement could not be stored durably.', 'Send the same ack again. Repeating an ack is safe.'),
  SINK_NOT_RUNNING: retry(503, 'The sink is not running: it is starting, or it is restarting after a failure.',
    'Try again. GET /info shows the state of the sink and its last error.'),
  STOPPING: retry(503, 'The service is stopping, or the sink is moving to another process.', 'Try again. The messages stay in the log.'),
  PARTITION_MOVING: retry(503, 'The sink partition of a message has no live owner: it is moving from one process to another.',
    'Try again. Repeating an ack is safe. GET /info shows which process serves which partition.'),
  GENERATION_WAITS: retry(503, 'The sink delivers another generation than the one that this process was about to serve: a replay went back to an earlier generation, or this generation has been handed over.',
    'Nothing to do: the sink goes on by itself with the generation that is due.'),
  PEER_UNREACHABLE: retry(503, 'The process of the cluster that serves the partition does not answer.',
    'Try again: if that process is gone, another one takes over its partitions. GET /info lists the processes. If it is running, check its TAILRACE_NODE_ADDRESS and the network.'),
  PEER_UNAUTHORIZED: final(401, 'A request to an internal path does not carry the signature of this cluster.',
    'Internal paths are only for the processes of a cluster. If one of them sent the request, give all processes the same VAULT_KEY, and clocks that differ by less than 5 minutes.'),
  PEER_REFUSED: retry(503, 'Another process of the cluster refuses requests of this one, or what answers at its address does not belong to this cluster.',
    'Give all processes the same VAULT_KEY, clocks that differ by less than 5 minutes, and each process a TAILRACE_NODE_ADDRESS of its own.'),
  INTERNAL: final(500, 'An unexpected failure: a defect of Tailrace.',
    'The log has a line of the same time with the cause. Please report it.'),
  // ── decoding ────────────────────────────────────────────────────────────────────────────────────
  LSN_MALFORMED: final(400, 'The text is not an LSN (a position in the write-ahead log).', 'Write the LSN as Postgres does, such as 16/B374D848.'),
  MESSAGE_MALFORMED: final(500, 'Postgres sent a replication message that can’t be decoded.',
    'Nothing is lost: the message was not confirmed, and the source reads it again every few minutes. Please report it with the versions of Postgres and Tailrace.'),
  PACK_MALFORMED: final(500, 'A record of the log can’t be read: it is damaged, or a newer version of Tailrace wrote it.',
    'If a newer Tailrace has run on this data, run that version again. Otherwise check the disk.'),
  // ── functions ───────────────────────────────────────────────────────────────────────────────────
  FUNCTION_FAILED: retry(422, 'A function threw an error, or returned a value that is not allowed. Its message waits and is tried again.',
    'The message names the function, the error, and line and column in the source. Correct the function: the next try runs the new code.'),
  FUNCTION_TIMEOUT: retry(422, 'A function ran longer than 1 second on one message. The message waits and is tried again.',
    'Look in the function for a loop that does not end, or a regular expression that backtracks. The next try runs the new code.'),
  FUNCTION_MEMORY: retry(422, 'A function needed more memory than its isolate has. The message waits and is tried again.',
    'Let the function hold less data, and let nothing grow from call to call. The next try runs the new code.'),
  FUNCTION_KILLED: retry(422, 'The sandbox process was ended because a function went beyond its limit of time or memory. The message waits and is tried again.',
    'The error names the limit and the message. Correct the function. Until then it runs apart from other functions, and it is switched off when it ends its sandbox at messages of three groups without finishing a message in between.'),
  FUNCTION_OFF: retry(422, 'A function is switched off because it ended its sandbox process at three messages of three groups, without finishing a message in between.',
    'The error names these messages. Correct the function and save it: new code is switched on, and its messages are tried again.'),
  FUNCTION_INVALID: retry(422, 'A saved function can’t be compiled.',
    'The message names line and column. Correct the function and save it again.'),
  ENRICHMENT_FAILED: retry(422, 'The query of an enrichment function failed, or its result has the wrong form. The messages of its batch wait and are tried again.',
    'The message has the words of Postgres. Correct the query, or grant what the query needs. The next try runs the new query.'),
  SANDBOX_UNAVAILABLE: retry(503, 'The sandbox process that runs functions does not start. Messages that need a function wait.',
    'The message has the output of the process. Functions need the package isolated-vm, which has binaries for Linux, macOS on ARM, and Windows on x64.'),
  // ── source ──────────────────────────────────────────────────────────────────────────────────────
  SOURCE_UNREACHABLE: retry(503, 'The source database can’t be reached, or the connection to it ended or fell silent.',
    'Nothing is lost: reading goes on by itself when the database answers. Check its address, the network and the server.'),
  SOURCE_UNABLE: retry(503, 'The source database answers but can’t serve: it is read-only, is restarting, rolled a transaction back, or has trouble with its files.',
    'Nothing is lost: reading goes on by itself when the server can serve. The message has the server’s own text and SQLSTATE.'),
  SOURCE_IN_RECOVERY: retry(503, 'The source database is in recovery: it is a standby that is not promoted, or a former primary that follows another server.',
    'Nothing is lost: reading goes on by itself when this server is promoted, or when the address leads to the primary. If neither is about to happen, check hostname and port. Do not drop or create a slot meanwhile.'),
  SOURCE_LOGIN_REFUSED: retry(422, 'The source database refuses the login, or the server has no database of this name.',
    'Check user, password and database name. ' + TRIED_AGAIN),
  SOURCE_REFUSED: final(422, 'The source database refuses the login, the database or a permission.',
    'The user needs LOGIN, REPLICATION, CONNECT on the database and SELECT on the tables. Check user, password and database name. ' + RETRY_SOURCE),
  SOURCE_POOLED: final(422, 'The address of the source database leads to a connection pooler that passes no replication on.',
    'Give the address of the server itself, not that of its pooler. PgBouncer passes replication on from version 1.23, in session mode. ' + RETRY_SOURCE),
  SOURCE_ENCODING: final(422, 'A value of the source database can’t be sent as UTF-8. In a database of the encoding SQL_ASCII, Postgres checks no value.',
    'The message has the bytes. Correct the value in its table, or move the database to the encoding UTF8. Then step over the change that has the value: run select pg_replication_slot_advance(slot, pg_current_wal_lsn()); run npx tailrace source retry NAME; accept the gap as SLOT_GAP says; and touch the rows of its tables by an UPDATE.'),
  TLS_REFUSED: final(422, 'No trusted TLS connection to a database: its certificate or its name is not accepted, or the server offers no TLS.',
    'The message says which, and what to change: ca_cert, hostname, ssl, or the server. ' + TRIED_AGAIN),
  SOURCE_FAILED: retry(500, 'The source database answered with an error that Tailrace does not know.',
    'The message has the server’s own text and SQLSTATE. ' + TRIED_AGAIN),
  SOURCE_LOCKED: retry(409, 'Another process reads this source.',
    'Nothing to do in a cluster: this process takes over when the other one stops. If the other process should not run, stop it.'),
  SOURCE_FENCED: retry(409, 'Another process has taken this source over.',
    'Nothing to do: the other process goes on from the last saved position.'),
  SOURCE_WENT_BACK: final(409, 'The source database was restored to an older copy, or a server with other transactions took its place: transactions that it had sent are not in its write-ahead log.',
    'Accept that: ' + ACCEPT_GAP),
  WAL_LEVEL_TOO_LOW: final(422, 'wal_level of the source database is not logical, so it has no logical replication.',
    'Run: alter system set wal_level = logical; and restart Postgres. ' + RETRY_SOURCE),
  PUBLICATION_MISSING: final(422, 'The publication does not exist in the source database.',
    'Run the SQL of the message, which creates the publication. ' + RETRY_SOURCE),
  PUBLICATION_TOO_YOUNG: final(409, 'The publication was created, or created again, after changes that the slot still has to send. Before version 18, Postgres can’t decode those changes.',
    'Changes that were written while there was no publication are lost. Accept that: ' + ACCEPT_GAP + ' The slot moves to where the publication begins, and no further.'),
  SLOT_MISSING: final(422, 'The replication slot does not exist, and the server is a primary.',
    'Run the SQL of the message, which creates the slot. Changes between the drop and then are missing: touch the rows by an UPDATE to get them. ' + RETRY_SOURCE),
  SLOT_LOST: final(409, 'Postgres has invalidated the replication slot: write-ahead log that the slot needs is removed. pg_replication_slots shows it.',
    'Run the SQL of the message, which drops the slot and creates it again. The message says from which LSN on changes are missing: touch the rows by an UPDATE to get them. ' + RETRY_SOURCE),
  SLOT_TWO_PHASE: final(422, 'The replication slot has two_phase switched on, so it would send rows before they are committed.',
    'Run the SQL of the message, which switches two_phase off; the slot keeps its position. ' + RETRY_SOURCE),
  SLOT_IN_USE: retry(409, 'Another program reads from the replication slot.',
    'Stop the other program, or give each program a slot of its own. Reading starts by itself when the slot is free.'),
  SLOT_WRONG_PLUGIN: final(422, 'The replication slot is physical, or uses another output plugin than pgoutput.',
    'Name another slot, or run the SQL of the message. ' + RETRY_SOURCE),
  SLOT_WRONG_DATABASE: final(422, 'The replication slot belongs to another database of the server.',
    'Name another slot: a slot name is unique in the whole server.'),
  SLOT_BLOCKED: retry(503, 'The replication slot could not be created because an older transaction is still open.',
    'The message names the transaction and its process. Wait for the transaction to end, or end its process; then try again.'),
  SLOT_GAP: final(409, 'The replication slot is ahead of the last durable change, so the changes between the two LSNs are lost; or the slot belongs to another server or database than the one that was read until now.',
    'The message names both LSNs. If the source points at the wrong server, point it back. Otherwise accept the gap: ' + ACCEPT_GAP),
  ROUTING_NOT_PLACED: retry(503, 'A change of a sink is saved but not yet in effect: the write-ahead log of its source has no mark of it. Until then the sink receives as before.',
    'Nothing to do: the mark is tried again by itself. If this lasts, the message says why. Most often the source database takes no more connections, or refuses the login.'),
  NO_GAP: final(409, 'There is no gap to accept: the source has not stopped because changes are missing.',
    'GET /info shows the state of the source and its last error.'),
  // ── the log and the state database ──────────────────────────────────────────────────────────────
  LOG_FOREIGN: final(503, 'The log was filled under another state database. This state database would never deliver what the log holds.',
    'Start with the data folder (in Kafka: the KAFKA_TOPIC_PREFIX) of this state database; or name the state database that belongs to the log (PG_URL), or restore it. To give up what the log holds, start with an empty data folder (in Kafka: another KAFKA_TOPIC_PREFIX).'),
  LOG_CHANGED: final(409, 'The log is not the one that this source has been writing to.',
    'Start with the former data folder. If that folder is lost, accept the loss: ' + ACCEPT_GAP),
  TOPICS_UNKNOWN: final(503, 'The log has topics that this state database does not know and did not create. Tailrace does not delete these topics.',
    'If two installations share one Kafka, give each its own KAFKA_TOPIC_PREFIX: the topics are the other one’s. If the state database was restored, the topics are of sinks that were created or edited after the copy: create or edit them again. Topics that nobody needs can be deleted by hand in Kafka.'),
  STATE_WENT_BACK: final(409, 'The state database is an older copy: the log was written, or messages were parked, later than it knows.',
    'Restore the newer state database, and let the source go on: npx tailrace source retry NAME, with the name of the database. If the newer one is lost, run npx tailrace source accept-gap NAME, which goes on with the copy: messages that were parked or discarded since may be missing, acknowledged ones of them may come again, and edits made since must be made again. Everything else is in the log and is delivered.'),
  LOG_WENT_BACK: final(409, 'The log is an older copy of the one that this source has been writing to: later messages are missing in it.',
    'Put the newer data folder back, and let the source go on: npx tailrace source retry NAME, with the name of the database. If the newer folder is lost, go on with the copy: messages in it are delivered, some of them again; messages that were appended since and not delivered are missing. Accept that: ' + ACCEPT_GAP),
  LOG_APPEND_FAILED: retry(503, 'The log could not store messages durably.',
    'Nothing is lost: the source starts again from its confirmed position. Check the disk of the data folder, or the Kafka brokers.'),
  LOG_APPEND_TIMEOUT: retry(503, 'The log did not store messages durably within the time limit.',
    'Nothing is lost: the source starts again from its confirmed position. Check the disk of the data folder, or the Kafka brokers.'),
  STATE_UNAVAILABLE: retry(503, 'The state database can’t be reached, or can’t serve: it is read-only, in recovery, or refuses the login.',
    'Check the server and the settings that name it: PG_URL, or PG_HOSTNAME and the others. At its start, Tailrace ends with this error; while it runs, work that needs the state database waits and goes on by itself.'),
  PARTITION_FENCED: retry(503, 'Another process has taken this sink partition over.',
    'Nothing to do: the new owner goes on from the last commit.'),
  PARTITION_GONE: final(404, 'The sink was deleted while a partition of it was at work.', 'Nothing to do: the partition ends.'),
  LOG_TOPIC_UNKNOWN: retry(503, 'The log has no topic for the stream that the sink reads: the topic is not yet created, or already deleted.',
    'Try again: a topic is created before the first sink reads its stream, and deleted after the last sink has left.'),
  LOG_DISK_FULL: retry(503, 'The disk of the log is nearly full, so nothing more is appended and reading from Postgres waits. Nothing is lost.',
    'Free space on the disk of the data folder, or let clients acknowledge messages: these free their space. The write-ahead log of the source grows meanwhile.'),
  LOG_FLUSH_FAILED: final(500, 'The disk refused a write of the log, so the state of the log is unknown and the process ended.',
    'Check the disk, then start again. Everything that was not durable is read again from Postgres.'),
  LOG_UNREACHABLE: retry(503, 'No Kafka broker can be reached or answers in time, or a partition in Kafka has no leader.',
    'Check KAFKA_BROKERS, the network and the brokers. At its start, Tailrace ends with this error; while it runs, nothing is lost and work goes on by itself when the brokers answer.'),
  LOG_REFUSED: final(500, 'Kafka refuses the login, a permission or a setting.',
    'The message has the broker’s own text. docs/kafka.md lists the rights and settings that Tailrace needs.'),
  LOG_RECORD_TOO_LARGE: retry(503, 'A Kafka broker refused a record as too large, although the record is within the limit in the configuration of its topic.',
    'Nothing is lost: the record is tried again in smaller parts. If that does not help, raise max.message.bytes of the topic, or message.max.bytes of the brokers.'),
  LOG_TRUNCATED: retry(503, 'A partition in Kafka ends below the offset that was already read: the brokers have lost records.',
    'Reading goes on with what the partition still holds, so messages may come twice. Lost messages come again when their rows are touched by an UPDATE. Do not allow unclean leader elections.'),
  LOG_TOO_NEW: final(500, 'A newer version of Tailrace wrote the log.', 'Run that version or a newer one. A downgrade is not possible.'),
  BACKLOG_FULL: retry(503, 'The backlog of a sink has reached max_backlog_mb, so its source has stopped reading. The backlog is either unacknowledged messages, or messages that the actions of the sink leave out and that it has not passed. Nothing is lost.',
    'Receive and acknowledge faster, resume the sink if it is paused, raise its max_backlog_mb, or disable the sink. The write-ahead log of the source grows meanwhile.'),
  STREAM_HELD: retry(503, 'One sink alone keeps much of a stream in the log: messages that it has not finished, or its replay_window. Other sinks of the stream deliver as usual.',
    'Receive and acknowledge, resume the sink, or shorten its replay_window. If the sink is disabled, or was edited to another shape, its messages are copied by themselves when the disk has room; until then the log needs that much more room.'),
  MESSAGE_TOO_LARGE: final(500, 'A message was larger than MAX_MESSAGE_MB, so it was discarded. Its key and size are on record; its change is not delivered.',
    'Raise MAX_MESSAGE_MB, which for a moment needs several times as much memory, and touch the row by an UPDATE. Or keep such values out of the table.'),
  ROW_TOO_LARGE: retry(500, 'An UPDATE left large (TOAST) values unchanged, and together they are larger than MAX_MESSAGE_MB. So they can’t be fetched for a destination that keeps whole documents.',
    'Make the row smaller, raise MAX_MESSAGE_MB, or discard the message. Until then the message is tried again, and later messages of its row wait.'),
  MESSAGES_DISCARDED: final(503, 'Messages of a sink were discarded: they failed max_retry_count times, or somebody discarded them.',
    'GET /api/sinks/NAME/messages?state=discarded lists the newest 1,000 with the reason. Correct the cause, then POST {"state": "discarded"} to /api/sinks/NAME/messages/redeliver.'),
  MESSAGES_FORGOTTEN: final(500, 'A defect of Tailrace: messages of a sink counted as being delivered although no request had them. These messages were sent again, so they may have come twice.',
    'Nothing to do for the messages. Please report it with the log of the ten minutes before.'),
  MESSAGES_DROPPED: final(503, 'New messages of a sink were dropped: its backlog reached max_backlog_mb, and its load_shedding_policy is discard_on_full.',
    'Receive and acknowledge faster, raise max_backlog_mb, or set load_shedding_policy to pause_on_full. Dropped messages are not in the log: to get them, touch their rows by an UPDATE.'),
  PARKING_FULL: retry(503, 'A sink partition has parked as many blocked groups as it may, so it reads no further. Nothing is lost.',
    'Acknowledge the messages of the sink that keep coming back, or set max_retry_count so that they are discarded. Reading goes on by itself.'),
  // ── destinations ────────────────────────────────────────────────────────────────────────────────
  EGRESS_REFUSED: final(422, 'The address of a destination or database is forbidden: EGRESS and EGRESS_DATABASES say which addresses this process may reach.',
    'Name another host, or allow this one with EGRESS_ALLOW.'),
  DESTINATION_UNREACHABLE: retry(422, 'No connection to the destination of a sink: its host name, port or certificate is wrong, or the destination is down.',
    'Check the address, the network and the destination. Nothing is lost: messages wait in the log, and delivery goes on by itself.'),
  DESTINATION_UNAVAILABLE: retry(422, 'The destination of a sink does not answer in time, breaks the connection off, or answers that it can’t serve.',
    'Check the destination. Nothing is lost: messages wait in the log, and delivery goes on by itself.'),
  DESTINATION_REFUSED: retry(422, 'The destination refuses every request: wrong credentials, a missing right, a missing index or a missing path.',
    'The message has the destination’s own words. Correct the settings of the sink, or the destination. Delivery then goes on by itself.'),
  DESTINATION_REJECTED: retry(422, 'The destination took the request and rejected a message.',
    'The message has the destination’s own words. Correct the data, the function or the destination. Then redeliver the message, or discard it. The message is tried again with growing pauses while other groups go on.'),
  DESTINATION_THROTTLED: retry(422, 'The destination answers that it gets too many requests.',
    'Nothing to do: fewer requests are sent at once until the destination keeps up. If this lasts, give the destination more capacity.'),
  MESSAGE_NOT_KEPT: final(409, 'The message was discarded for its size. Its content was not kept, so it can’t be delivered again.',
    'Raise MAX_MESSAGE_MB and touch the row by an UPDATE.'),
  MESSAGE_UNDELIVERABLE: retry(422, 'The message can’t be sent to this type of destination: it has no key, or its form is wrong.',
    'The error says what is missing. Correct the primary key of the table or the function of the sink, and the message is delivered. Or discard the message.'),
  // ── start ───────────────────────────────────────────────────────────────────────────────────────
  SETTING_INVALID: final(500, 'An environment variable has a value that is not allowed.', 'The message names the variable and what it takes.'),
  DATA_FOLDER_IN_USE: final(500, 'Another process uses the same data folder.',
    'The message names its process id. Stop that process, or give this one another folder (TAILRACE_DATA).'),
  EMBEDDED_POSTGRES_FAILED: final(500, 'The embedded PostgreSQL could not be set up or started, or it ended and did not start again.',
    'The message ends with the log of PostgreSQL. PostgreSQL never runs as root: if Tailrace runs as root, it needs user namespaces (unshare -U), or the right to become another user (setpriv). Otherwise run Tailrace as another user, or name a server of your own with PG_URL.'),
  STATE_TOO_NEW: final(500, 'A newer version of Tailrace wrote the state database.',
    'Run that version or a newer one. A downgrade is not possible.'),
  SECRET_UNREADABLE: final(500, 'A secret in the state database was encrypted with another VAULT_KEY.',
    'Start with the VAULT_KEY, or the data folder, that the secret was stored with.'),
  SERVICE_UNREACHABLE: retry(503, 'The command found no running Tailrace.',
    'Start Tailrace. If it listens elsewhere, give the command --url, or the variables of its start (TAILRACE_DATA, SERVER_PORT).'),
  TELEMETRY_REFUSED: retry(503, 'The OpenTelemetry collector does not take metrics, or traces. Messages are delivered all the same, and /metrics has the metrics.',
    'Look whether the collector runs where OTEL_EXPORTER_OTLP_ENDPOINT says and takes OTLP over HTTP (port 4318 mostly), and whether OTEL_EXPORTER_OTLP_HEADERS sign in. Nothing else is to be done: the next metrics and traces are sent as usual.'),
  DEMO_MISSING: final(404, 'The data folder has no demo.',
    'Run "npm start" without PG_URL and CONFIG_FILE_PATH first, in the same folder or with the same TAILRACE_DATA.'),
  PORT_UNAVAILABLE: final(500, 'A port of the service is taken by another program, or may not be used.',
    'Stop the program that listens there, or set another port. The message names the variable.'),
  CONFIG_BUSY: retry(429, 'Several configurations of the account are already being read or applied. Configurations run one after the other.',
    'Send the request again when the others are answered.'),
  CONFIG_INVALID: final(422, 'The configuration file has mistakes. Nothing of it was applied.',
    'The message names file, line and reason of every mistake. Correct them and apply the file again.'),
}

/** The code of a failure that Tailrace reports. */
export type ErrorCode = keyof typeof ERRORS
/** Tells the codes of this version from those that another one may send. */
export const isErrorCode = (code: unknown): code is ErrorCode => typeof code === 'string' && Object.hasOwn(ERRORS, code)
/** Says what a failure is about: names, positions, sizes; never row values or secrets. */
export type ErrorContext = Readonly<Record<string, string | number | boolean | null>>

/** A failure that Tailrace reports: its code says what it means, its message what has happened here. */
export class EngineError extends Error {
  override readonly name = 'EngineError'
  readonly code: ErrorCode
  readonly context: ErrorContext
  constructor(code: ErrorCode, message: string, context: ErrorContext = {}, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.context = context
  }
}

/** Tells whether an error says that the partition has another owner, as happens whenever partitions move. */
export const isFenced = (error: unknown): error is EngineError => error instanceof EngineError && error.code === 'PARTITION_FENCED'

/** Tells whether an error says that the partition's sink has been deleted: whoever works for it will be told to end. */
export const isGone = (error: unknown): boolean => error instanceof EngineError && error.code === 'PARTITION_GONE'

/** Makes the refusal of a resource or request for one field, which its context names with the reason. */
export const fieldRefused = (field: string, reason: string): EngineError =>
  new EngineError('VALIDATION_FAILED', `${field} ${reason}.`, { [field]: reason })

/** Tells whether trying the same thing again can help. */
export const isRetryable = (error: unknown): boolean => error instanceof EngineError && ERRORS[error.code].retry

/** Reads the code that Node, a driver or Tailrace itself gave to an error, such as ENOENT. */
export const codeOf = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined

/** Gives the text of an error, whatever was thrown. */
export const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error))
