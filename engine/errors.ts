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

/** The remedy that says how a source that has stopped goes on. */
const RETRY_SOURCE = 'Then let its source go on: npx tailrace source retry NAME, with the name of the database.'
/** The remedy for what a source doesn't stop at, though it may well last. */
const TRIED_AGAIN =
  'Nothing is lost: the source tries again by itself, at least every few minutes, and at once by npx tailrace source retry NAME, with the name of the database.'

/** A failure that comes again until somebody changes something. */
const final = (status: number, meaning: string, remedy: string): Row => ({ retry: false, status, meaning, remedy })
/** A failure that can pass by itself. */
const retry = (status: number, meaning: string, remedy: string): Row => ({ retry: true, status, meaning, remedy })

// prettier-ignore
/** Each code with its HTTP status, what happened, and what to do. */
export const ERRORS = {
  // ── requests ────────────────────────────────────────────────────────────────────────────────────
  REQUEST_INVALID: final(400, 'A parameter or the body of a request has the wrong form.',
    'The summary names the parameter, what was expected and what came.'),
  REQUEST_UNPARSABLE: final(400, 'The body of a request is not valid JSON.', 'Send a JSON object in UTF-8.'),
  ARGUMENT_INVALID: final(400, 'A command was given a file or a value that it can’t use.',
    'The message says which, and what is wrong with it.'),
  TOKEN_INVALID: final(401, 'The request has no API token, or one that is not known.',
    'Send the header "Authorization: Bearer <API token>".'),
  NOT_FOUND: final(404, 'The account has no such resource.', 'Check the id or name, and that the token belongs to the right account.'),
  ROUTE_NOT_FOUND: final(404, 'No such path, or not with this method.', 'GET /api/openapi.json lists every path and its methods.'),
  NOT_ACCEPTABLE: final(406, 'The Accept header of a request leaves out JSON.', 'Send "Accept: application/json", or no Accept header.'),
  REQUEST_TOO_SLOW: retry(408, 'A request did not arrive whole within its time.',
    'Send the request at once, or smaller ones; waiting for an answer is not limited by this.'),
  BODY_TOO_LARGE: final(413, 'The body of a request is longer than the path takes.', 'Send it in several requests.'),
  HEADERS_TOO_LARGE: final(431, 'The headers of a request are longer than 16 kB.', 'Send fewer or shorter headers.'),
  VALIDATION_FAILED: final(422, 'A resource was refused because a field has a value it may not have.',
    'validation_errors names each field and the reason.'),
  RESOURCE_IN_USE: final(400, 'An HTTP endpoint can’t be deleted while sinks send to it.',
    'The message names them: edit or delete them first.'),
  TOO_MANY_WAITING: retry(429, 'The sink already holds max_waiting receives that wait for messages.',
    'Wait for one to end, or raise max_waiting of the sink.'),
  REPLAY_RUNNING: retry(409, 'Another replay of the same sink is being done.',
    'Wait for it to end, which takes seconds, and say again where to go back to.'),
  REPLAY_OUT_OF_WINDOW: final(422, 'A replay was asked for from a place that the replay window of the sink does not reach back to.',
    'The summary says where the window begins. Older rows come again when an update touches them. For the future: replay_window of the sink, which keeps at most 1 GB.'),
  BACKFILL_REFUSED: final(422, 'A table can’t be backfilled as it was asked for: it is not there, not published, or has no key to read it by.',
    'The message says which, and what to change in the source database or in the backfill.'),
  BACKFILL_INTERRUPTED: retry(503, 'A page of a backfill could not be read or written now.',
    'Nothing is lost: the backfill goes on behind its last durable page by itself.'),
  ACK_NOT_DURABLE: retry(503, 'The acknowledgement could not be made durable.', 'Send the same ack again; repeating an ack is safe.'),
  SINK_NOT_RUNNING: retry(503, 'The sink is not running at the moment: it is starting, or being started again after a failure.',
    'Try again; GET /info shows the state of its actor and its last error.'),
  STOPPING: retry(503, 'The service is stopping or the sink is moving.', 'Try again; the message stays in the log.'),
  PARTITION_MOVING: retry(503, 'The partition of a message has no live owner at the moment: it is moving from one process to another.',
    'Try again; repeating an ack is safe. GET /info shows which process serves which partition.'),
  GENERATION_WAITS: retry(503, 'Another generation of the sink is to be delivered than the one that this process was about to serve: a replay has gone back to an earlier one, or this one has been handed over.',
    'Nothing: the sink goes on with the generation that is to be delivered now.'),
  PEER_UNREACHABLE: retry(503, 'The process of the cluster that serves the partition does not answer.',
    'Try again: if it is gone, another one takes its partitions over. GET /info shows the processes; check TAILRACE_NODE_ADDRESS of the one named.'),
  PEER_UNAUTHORIZED: final(401, 'A request to an internal path does not carry the signature of this cluster.',
    'Internal paths are for the other processes of a cluster only. If it came from one: all need the same VAULT_KEY, and clocks within 5 minutes.'),
  PEER_REFUSED: retry(503, 'Another process of the cluster refuses this one, or what answers at its address is not of this cluster.',
    'Give all processes the same VAULT_KEY, their clocks within 5 minutes, and each an address of its own (TAILRACE_NODE_ADDRESS).'),
  INTERNAL: final(500, 'Something went wrong that Tailrace does not know.',
    'The log line of the same time has the cause; please report it.'),
  // ── decoding ────────────────────────────────────────────────────────────────────────────────────
  LSN_MALFORMED: final(400, 'A text is not a position of the write-ahead log.', 'Positions look like 16/B374D848.'),
  MESSAGE_MALFORMED: final(500, 'Postgres sent a replication message whose lengths do not fit.',
    'It was not confirmed, so nothing is lost, and the source reads it again every few minutes; please report it with the versions.'),
  PACK_MALFORMED: final(500, 'A record of the log could not be read: it is damaged or of a newer version.',
    'Do not run an older Tailrace on the data of a newer one; otherwise check the disk.'),
  // ── functions ───────────────────────────────────────────────────────────────────────────────────
  FUNCTION_FAILED: retry(422, 'A function threw an error or returned what it may not return, so its message waits and is tried again.',
    'The message names the function, what it threw, and line and column in its source. Mend the function: the next try takes it.'),
  FUNCTION_TIMEOUT: retry(422, 'A function ran longer than 1 second on one message.',
    'Look for a loop that does not end or an expression that backtracks; the message is tried again with the function as it is then.'),
  FUNCTION_MEMORY: retry(422, 'A function needed more memory than its isolate has.',
    'Keep less; nothing that one call gathers may grow without end. The message is tried again.'),
  FUNCTION_KILLED: retry(422, 'A function got past its limits of time or memory, so the process it ran in was ended.',
    'It says which limit, and at which message, which waits and is tried again by itself. The function runs apart from others from now on, and is switched off when it does so at messages of three groups with none that it finished in between.'),
  FUNCTION_OFF: retry(422, 'A function is switched off because the process it ran in had to be ended at three messages of three groups, and it finished none in between.',
    'It says at which messages. Change the function: its new text starts with a clean record, and its messages are tried again.'),
  FUNCTION_INVALID: retry(422, 'A function that was saved can not be built.',
    'The message names line and column; save the function again with the fault mended.'),
  ENRICHMENT_FAILED: retry(422, 'The query that enriches messages failed, or gave what it may not give, so the messages of its batch wait and are tried again.',
    'The message has what Postgres said. Mend the query, or grant what it needs: the next try takes it.'),
  SANDBOX_UNAVAILABLE: retry(503, 'The process that functions run in does not start, so messages that need a function wait.',
    'The message has what it said. Functions need the package isolated-vm, which has binaries for Linux, macOS on ARM, and Windows on x64.'),
  // ── source ──────────────────────────────────────────────────────────────────────────────────────
  SOURCE_UNREACHABLE: retry(503, 'The source database cannot be reached, or the connection to it ended or fell silent.',
    'Nothing is lost: reading goes on by itself once the database answers. Check address, network and server.'),
  SOURCE_UNABLE: retry(503, 'The source database answers and can’t serve at the moment: it is read-only or being restarted, has undone a transaction, or has trouble with its files.',
    'Nothing is lost: reading goes on by itself once the server can. The message has the server’s own text and SQLSTATE.'),
  SOURCE_IN_RECOVERY: retry(503, 'The server of the source is in recovery: a standby that is not promoted yet, or a former primary that follows another one.',
    'Nothing is lost: reading goes on by itself once this server is promoted, or the address leads to the primary. Do not drop or make a slot meanwhile. Check hostname and port if neither is about to happen.'),
  SOURCE_LOGIN_REFUSED: retry(422, 'The source database refuses the login, or there is no database of this name.',
    'Check user, password and database name. ' + TRIED_AGAIN),
  SOURCE_REFUSED: final(422, 'The source database refuses the login, the database or a permission.',
    'The user needs LOGIN, REPLICATION, CONNECT and SELECT on the tables; check user, password and database name. ' + RETRY_SOURCE),
  SOURCE_ENCODING: final(422, 'A value of the source database can not be sent as UTF-8. In a database of the encoding SQL_ASCII Postgres checks no value.',
    'The message has the bytes. Mend the value in its table, or move the database to the encoding UTF8; then step over the change that has it: select pg_replication_slot_advance(slot, pg_current_wal_lsn()), run npx tailrace source retry NAME, accept the gap as SLOT_GAP says, and touch the rows of its tables.'),
  TLS_REFUSED: final(422, 'No TLS connection to a database comes about that could be trusted: its certificate, its name, or no TLS at all.',
    'The message says which, and what to change: ca_cert, hostname, ssl, or the server. ' + TRIED_AGAIN),
  SOURCE_FAILED: retry(500, 'The source database answered with an error that Tailrace does not know.',
    'The message has the server’s own text and SQLSTATE. ' + TRIED_AGAIN),
  SOURCE_LOCKED: retry(409, 'Another process owns this source.',
    'This process takes over when the other one stops; end the other if it should not run.'),
  SOURCE_FENCED: retry(409, 'This process lost the ownership of the source to another one.',
    'Nothing to do: the owner goes on from the last saved position.'),
  SOURCE_WENT_BACK: final(409, 'The source has another past than the one it had sent: it was put back to an older copy, and perhaps written to since.',
    'Accept it by "npx tailrace source accept-gap NAME" with the name of the database, then touch the rows of its tables.'),
  WAL_LEVEL_TOO_LOW: final(422, 'The source database does not write what logical replication needs.',
    'alter system set wal_level = logical; then restart Postgres. ' + RETRY_SOURCE),
  PUBLICATION_MISSING: final(422, 'The publication does not exist in the source database.',
    'The message has the SQL that creates it. ' + RETRY_SOURCE),
  PUBLICATION_TOO_YOUNG: final(409, 'The publication was created, perhaps for the second time, after changes that the slot still has to send: before version 18, Postgres can’t decode those.',
    'What was written while there was no publication is lost to the slot. Accept it by "npx tailrace source accept-gap NAME" with the name of the database, which moves the slot to where the publication begins and no further; then touch the rows of its tables.'),
  SLOT_MISSING: final(422, 'The replication slot does not exist, and the server is a primary.',
    'The message has the SQL that creates it; what was written since it was dropped comes when its rows are touched. ' + RETRY_SOURCE),
  SLOT_LOST: final(409, 'Postgres has invalidated the replication slot, as pg_replication_slots says: write-ahead log it needs is gone.',
    'The message has the SQL that drops and creates it again, and the position from which changes are missing. ' + RETRY_SOURCE),
  SLOT_TWO_PHASE: final(422, 'The replication slot has two_phase switched on and would send rows before they are committed.',
    'The message has the SQL that switches it off; the slot keeps its position by it. ' + RETRY_SOURCE),
  SLOT_IN_USE: retry(409, 'Another program reads from the replication slot.',
    'Stop it, or give each program a slot of its own; reading starts by itself once the slot is free.'),
  SLOT_WRONG_PLUGIN: final(422, 'The replication slot is physical or made for another output plugin than pgoutput.',
    'Name another slot, or run the SQL of the message. ' + RETRY_SOURCE),
  SLOT_WRONG_DATABASE: final(422, 'The replication slot belongs to another database of the server.',
    'Slot names are unique in a server: name another slot.'),
  SLOT_BLOCKED: retry(503, 'A replication slot could not be created because an older transaction is still open.',
    'The message names the transaction and its process: let it end, or end it.'),
  SLOT_GAP: final(409, 'The replication slot stands above what was made durable: changes between the two positions are lost to it. Or it belongs to another server or database than what was read until now.',
    'The message names both positions. Accept the gap by "npx tailrace source accept-gap NAME" with the name of the database, then touch the rows of its tables.'),
  ROUTING_NOT_PLACED: retry(503, 'A change of what a sink is to receive is saved, and stands not yet in the log of its source: until then it receives as before.',
    'Nothing to do but what the message says: it is tried again by itself. Most often the source database takes no more connections, or refuses the login, while the stream goes on.'),
  NO_GAP: final(409, 'The source has not stopped at missing changes, so there is nothing to accept.',
    'GET /info shows the state of the source and its last error.'),
  LOG_FOREIGN: final(503, 'The log was filled under another state database: what it holds would never be delivered.',
    'Start with the data folder, or in Kafka the KAFKA_TOPIC_PREFIX, that belongs to this state database; or name the state database that the log was filled with (PG_URL), or restore that one. To give up what it holds, begin with an empty data folder, or in Kafka with another KAFKA_TOPIC_PREFIX.'),
  LOG_CHANGED: final(409, 'The log is not the one this source has been writing to.',
    'Start with the former data folder, or accept the loss by "npx tailrace source accept-gap NAME" with the name of the database, and touch the rows of its tables.'),
  TOPICS_UNKNOWN: final(503, 'The log holds topics that this state database does not know and has not made, so they are not deleted.',
    'Two installations on one Kafka need two prefixes (KAFKA_TOPIC_PREFIX): then the topics are the other one’s. After a restore of the state database they are of sinks that were made or edited since: do that again. What nobody needs can be deleted by hand, in Kafka.'),
  STATE_WENT_BACK: final(409, 'The state database is an older copy: owners of partitions have written to the log, or messages have been parked, that it does not know of.',
    'Put the newer state database back, and let the source go on: npx tailrace source retry NAME, with the name of the database. If it is gone, "npx tailrace source accept-gap NAME" goes on with the copy: messages that were parked or discarded since may be missing, acknowledged ones of them may come again, and edits made since are to be made again. Everything else is in the log and is delivered.'),
  LOG_WENT_BACK: final(409, 'The log is an older copy of the one this source has been writing to: what was appended since is not in it.',
    'Put the newer data folder back, and let the source go on: npx tailrace source retry NAME, with the name of the database. If it is gone, "npx tailrace source accept-gap NAME" goes on with the copy: what it holds is delivered, some of it again, and what was appended since and not yet delivered is missing. Touch the rows of its tables then.'),
  LOG_APPEND_FAILED: retry(503, 'The log could not make messages durable.',
    'The source starts again from its confirmed position, so nothing is lost. Check the disk of the data folder.'),
  LOG_APPEND_TIMEOUT: retry(503, 'The log has not made messages durable within the time limit.',
    'The source starts again from its confirmed position, so nothing is lost. Check the disk of the data folder, or the brokers.'),
  STATE_UNAVAILABLE: retry(503, 'The state database can’t be reached, or can’t serve at the moment: it is read-only, in recovery, or refuses the login.',
    'Check the server, and what names it: PG_URL, or PG_HOSTNAME and the others. A start stops at it; while the service runs, work that needs it waits and goes on by itself.'),
  PARTITION_FENCED: retry(503, 'This process lost the ownership of a sink partition to another one.',
    'Nothing to do: the new owner goes on from the last commit.'),
  PARTITION_GONE: final(404, 'The sink of a partition was deleted while the partition worked.', 'Nothing to do: the partition ends.'),
  LOG_TOPIC_UNKNOWN: retry(503, 'The log has no topic for the stream that a sink reads (yet, or any more).',
    'It is made before the first sink reads it, and deleted after the last one has left; try again.'),
  LOG_DISK_FULL: retry(503, 'The disk of the log is nearly full, so nothing more is appended; reading from Postgres waits, nothing is lost.',
    'Free space on the disk of the data folder, or let the sinks drain: acknowledged messages free their space.'),
  LOG_FLUSH_FAILED: final(500, 'The disk did not take a write of the log, so what it holds is unknown and the process ended.',
    'Check the disk, then start again: everything that was not durable is read again from Postgres.'),
  LOG_UNREACHABLE: retry(503, 'No broker of Kafka can be reached or answers in time, or a partition has no leader at the moment.',
    'Check KAFKA_BROKERS, the network and the brokers. A start stops at it; while the service runs nothing is lost, and work goes on by itself once they answer.'),
  LOG_REFUSED: final(500, 'Kafka refuses the login, a permission or a setting.',
    'The message has the broker’s own text; docs/kafka.md lists the rights and settings that are needed.'),
  LOG_RECORD_TOO_LARGE: retry(503, 'A broker of Kafka refused a record as too large although it is within what the configuration of its topic says.',
    'Nothing is lost: it is tried again in smaller parts. If it does not pass, raise max.message.bytes of the topic, or of the brokers.'),
  LOG_TRUNCATED: retry(503, 'A partition in Kafka ends below what was already read of it: the brokers have lost records.',
    'Reading begins again at what the partition still holds, so messages may come twice; what is missing comes when its rows are touched. Do not allow unclean leader elections.'),
  LOG_TOO_NEW: final(500, 'The log was written by a newer version.', 'Run that version or a newer one; a downgrade is not possible.'),
  BACKLOG_FULL: retry(503, 'The unacknowledged backlog of a sink, or what it keeps in the log of messages that its actions leave out, has reached max_backlog_mb, so its source has stopped reading; nothing is lost.',
    'Receive and acknowledge faster, resume the sink if it is paused, raise max_backlog_mb, or disable it; the write-ahead log of the source grows meanwhile.'),
  STREAM_HELD: retry(503, 'Much of a stream stays in the log for one sink alone: for what it has not finished, or for its replay_window. Other sinks that read the stream need it no more; they deliver as ever.',
    'Receive and acknowledge, or resume the sink; shorten its replay_window. What a sink that is disabled, or edited to another shape, has left is copied by itself, if the disk has room for it. Until then the log takes that much more room.'),
  MESSAGE_TOO_LARGE: final(500, 'A message was larger than MAX_MESSAGE_MB, so it was discarded: its key and size are on record, its change is not delivered.',
    'Raise MAX_MESSAGE_MB, which needs several times as much memory for a moment, and touch the row; or keep such values out of the table.'),
  ROW_TOO_LARGE: retry(500, 'An update left out large values that it didn’t change, and those of its row are larger than MAX_MESSAGE_MB: they can’t be fetched for a destination that keeps whole documents.',
    'Make the row smaller, raise MAX_MESSAGE_MB, or discard the message: it is tried again, and others of its row wait for it.'),
  MESSAGES_DISCARDED: final(503, 'Messages of a sink were given up: they failed max_retry_count times, or somebody discarded them.',
    'GET /api/sinks/NAME/messages?state=discarded lists the newest 1,000 with the reason. Mend it, then POST {"state": "discarded"} to /api/sinks/NAME/messages/redeliver.'),
  MESSAGES_FORGOTTEN: final(500, 'Messages of a sink were held as under way although no request had them. They were sent again, so they may have come twice.',
    'Nothing for the messages. It is a defect of Tailrace: please report it with the log of the ten minutes before.'),
  MESSAGES_DROPPED: final(503, 'The backlog of a sink with load_shedding_policy discard_on_full had reached max_backlog_mb, so new messages of it were dropped.',
    'Receive and acknowledge faster, raise max_backlog_mb, or choose pause_on_full. What was dropped is not in the log: touch the rows where it matters.'),
  PARKING_FULL: retry(503, 'A partition has parked as many blocked groups as it may, so it reads no further; nothing is lost.',
    'Acknowledge the messages of the sink that keep coming again, or let max_retry_count discard them; reading goes on by itself.'),
  // ── destinations ────────────────────────────────────────────────────────────────────────────────
  EGRESS_REFUSED: final(422, 'The address of a destination or of a database is one that this process may not reach.',
    'Name another host, or let this one through with EGRESS_ALLOW; EGRESS and EGRESS_DATABASES say which addresses are allowed.'),
  DESTINATION_UNREACHABLE: retry(422, 'No connection to the destination of a sink comes about: its name, its port, its certificate, or it is down.',
    'Check the address, the network and the destination. Nothing is lost: messages wait in the log, and delivery goes on by itself.'),
  DESTINATION_UNAVAILABLE: retry(422, 'The destination of a sink does not answer in time, breaks off, or says that it can’t serve at the moment.',
    'Look at the destination. Nothing is lost: messages wait in the log, and delivery goes on by itself.'),
  DESTINATION_REFUSED: retry(422, 'The destination refuses whatever is sent: wrong credentials, a missing right, a missing index or path.',
    'The message has the destination’s own words. Mend the sink’s settings or the destination; delivery then goes on by itself.'),
  DESTINATION_REJECTED: retry(422, 'The destination took the request and refused a message.',
    'The message has the destination’s own words. It is tried again with growing pauses while other groups go on; mend its data, the function or the destination, redeliver it, or discard it.'),
  DESTINATION_THROTTLED: retry(422, 'The destination says that it gets more than it can take.',
    'Nothing to do: fewer requests are sent at once until it keeps up. Make the destination larger if it lasts.'),
  MESSAGE_NOT_KEPT: final(409, 'A message that was discarded for its size is on record without its content, so it can’t be delivered again.',
    'Raise MAX_MESSAGE_MB and touch the row.'),
  MESSAGE_UNDELIVERABLE: retry(422, 'A message can’t be sent to this kind of destination as it is: it has no key, or its form is not the one that is needed.',
    'The message says what is missing. Mend the table’s key or the sink’s function; the message is then delivered, or discard it.'),
  // ── start ───────────────────────────────────────────────────────────────────────────────────────
  SETTING_INVALID: final(500, 'An environment variable has a value it may not have.', 'The message names the variable and what it takes.'),
  DATA_FOLDER_IN_USE: final(500, 'Another process runs on the same data folder.',
    'The message says its pid: stop it, or give this one a folder of its own (TAILRACE_DATA).'),
  EMBEDDED_POSTGRES_FAILED: final(500, 'The embedded PostgreSQL could not be set up or started, or it ended and did not come up again.',
    'The message ends with its log. PostgreSQL never runs as root: as root Tailrace needs user namespaces (unshare -U), or the right to become another user (setpriv). Else run it as another user, or name a server of your own with PG_URL.'),
  STATE_TOO_NEW: final(500, 'The state database was written by a newer version.',
    'Run that version or a newer one; a downgrade is not possible.'),
  SECRET_UNREADABLE: final(500, 'A secret in the state database was encrypted under another key.',
    'Start with the VAULT_KEY (or the data folder) that it was stored with.'),
  SERVICE_UNREACHABLE: retry(503, 'A command found no running Tailrace.',
    'Start it; if it listens elsewhere, set the variables of its start (TAILRACE_DATA, SERVER_PORT), or give the command its --url.'),
  DEMO_MISSING: final(404, 'No demo is found in the data folder.',
    'Run "npm start" without PG_URL and CONFIG_FILE_PATH in the same folder (or with the same TAILRACE_DATA) first.'),
  PORT_UNAVAILABLE: final(500, 'A port that the service should listen on is taken, or may not be used.',
    'Stop what listens there, or set another port; the message names the variable.'),
  CONFIG_BUSY: retry(429, 'Several configurations of the account are being read or applied already, one after the other.',
    'Send the request again when they have been answered.'),
  CONFIG_INVALID: final(422, 'The configuration file could not be applied; nothing of it was.',
    'The message names file, line and reason of every mistake.'),
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

/** Tells whether trying the same thing again can help. */
export const isRetryable = (error: unknown): boolean => error instanceof EngineError && ERRORS[error.code].retry

/** Reads the code that Node, a driver or Tailrace itself gave to an error, such as ENOENT. */
export const codeOf = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined

/** Gives the text of an error, whatever was thrown. */
export const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error))
