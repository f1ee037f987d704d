/** Destinations in the form in which files of Sequin have them, of each type that is stored and not sent to; with their secrets. */
export const UNSENT: readonly Readonly<{ type: string } & Record<string, unknown>>[] = [
  {
    type: 'kafka',
    hosts: 'kafka-1.shop.internal:9092,kafka-2.shop.internal:9092',
    topic: 'shop.purchases',
    tls: true,
    username: 'shop',
    password: 'kafka-password-1',
    sasl_mechanism: 'scram_sha_256',
  },
  {
    type: 'sqs',
    queue_url: 'https://sqs.eu-west-1.amazonaws.com/123456789012/shop.fifo',
    region: 'eu-west-1',
    access_key_id: 'AKIDSHOPSHOPSHOP0001',
    secret_access_key: 'sqs-secret-access-key-1',
  },
  {
    type: 'sns',
    topic_arn: 'arn:aws:sns:eu-west-1:123456789012:shop',
    access_key_id: 'AKIDSHOPSHOPSHOP0002',
    secret_access_key: 'sns-secret-access-key-1',
  },
  { type: 'kinesis', stream_arn: 'arn:aws:kinesis:eu-west-1:123456789012:stream/shop', use_task_role: true },
  {
    type: 'redis_stream',
    host: 'redis.shop.internal',
    port: 6379,
    stream_key: 'purchases',
    database: 1,
    tls: false,
    username: 'shop',
    password: 'redis-password-1',
  },
  { type: 'redis_string', host: 'redis.shop.internal', port: 6379, expire_ms: 60_000, password: 'redis-password-2' },
  {
    type: 'rabbitmq',
    host: 'rabbit.shop.internal',
    port: 5672,
    exchange: 'shop',
    username: 'shop',
    password: 'rabbit-password-1',
    virtual_host: '/shop',
  },
  {
    type: 'nats',
    host: 'nats.shop.internal',
    port: 4222,
    username: 'shop',
    password: 'nats-password-1',
    jwt: 'nats-jwt-1',
    nkey_seed: 'nats-seed-1',
  },
  {
    type: 'gcp_pubsub',
    project_id: 'shop-project',
    topic_id: 'purchases',
    credentials: { type: 'service_account', project_id: 'shop-project', private_key_id: 'gcp-key-id-1', private_key: 'gcp-private-key-1' },
  },
  {
    type: 'azure_event_hub',
    namespace: 'shop',
    event_hub_name: 'purchases',
    shared_access_key_name: 'sender',
    shared_access_key: 'azure-shared-key-1',
  },
  {
    type: 'typesense',
    endpoint_url: 'https://search.shop.internal:8108',
    collection_name: 'products',
    api_key: 'typesense-key-1',
    timeout_seconds: 5,
  },
  { type: 's2', basin: 'shop', stream: 'purchases', access_token: 's2-access-token-1' },
  {
    type: 'mysql',
    host: 'mysql.shop.internal',
    port: 3306,
    database: 'shop',
    table_name: 'products',
    username: 'shop',
    password: 'mysql-password-1',
  },
]

const texts = (value: unknown): string[] =>
  typeof value === 'string' ? [value] : typeof value === 'object' && value !== null ? Object.values(value).flatMap(texts) : []
/** Their secrets, each of which ends with its number. */
export const SECRETS: readonly string[] = texts(UNSENT).filter((text) => /^AKID|^(?!eu-west)[a-z0-9-]+-\d$/.test(text))
