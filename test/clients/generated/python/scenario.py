"""What a program does with the client that openapi-python-client makes of the OpenAPI document: the same as scenario.ts. The client is the package
tailrace_api beside it."""

import json
import os

from tailrace_api import AuthenticatedClient
from tailrace_api.api.default import (
    ack,
    create_backfill,
    create_database,
    create_http_endpoint,
    create_sink,
    delete_database,
    delete_http_endpoint,
    delete_sink,
    export_config,
    get_sink,
    list_backfills,
    list_sinks,
    list_tables,
    plan_config,
    receive,
    test_database,
    update_sink,
)
from tailrace_api.models import (
    AckBody,
    BackfillInput,
    BackfillState,
    ConfigInput,
    DatabaseInput,
    Error,
    HttpEndpointInput,
    HttpEndpointInputHeadersType0,
    ReceiveBody,
    ReplicationSlotInput,
    SequinStreamDestinationInput,
    SinkInput,
    SinkInputAnnotations,
    SinkInputStatus,
    SourceFilter,
    WebhookDestinationInput,
)
from tailrace_api.types import UNSET

given = json.loads(os.environ["GIVEN"])
prefix = given["prefix"]
shop, hook, pull, web = (f"{prefix}-{name}" for name in ("shop", "hook", "pull", "web"))
client = AuthenticatedClient(given["url"], given["token"], raise_on_unexpected_status=True)


def taken(response):
    """What a success holds."""
    assert response.status_code < 300, (response.status_code, response.content)
    return response.parsed


def refused(response):
    assert isinstance(response.parsed, Error), response.content
    fields = response.parsed.validation_errors
    return {
        "status": int(response.status_code),
        "code": response.parsed.code,
        "fields": fields.additional_keys if fields else [],
    }


slot = ReplicationSlotInput(
    slot_name=f"{given['slot']}_{prefix}_slot",
    publication_name=f"{given['slot']}_{prefix}_pub",
    create_if_not_exists=True,
)
body = DatabaseInput(name=shop, **given["database"], ssl=False, pool_size=2, replication_slots=[slot])
made = taken(create_database.sync_detailed(client=client, body=body))
reached = taken(test_database.sync_detailed(str(made.id), client=client))
tables = taken(list_tables.sync_detailed(shop, client=client))

headers = HttpEndpointInputHeadersType0.from_dict({"x-shop": prefix})
endpoint = HttpEndpointInput(name=hook, url=given["receiver"], headers=headers)
taken(create_http_endpoint.sync_detailed(client=client, body=endpoint))
source = SourceFilter(include_tables=["public.customers"])
destination = SequinStreamDestinationInput(type_="sequin_stream")
body = SinkInput(name=pull, database=shop, source=source, destination=destination)
first = taken(create_sink.sync_detailed(client=client, body=body))
destination = WebhookDestinationInput(type_="webhook", http_endpoint=hook, batch=False)
body = SinkInput(name=web, database=shop, source=source, destination=destination, status=SinkInputStatus.PAUSED)
taken(create_sink.sync_detailed(client=client, body=body))

listed, pages, cursor = [], 0, UNSET
while pages == 0 or cursor is not UNSET:
    page = taken(list_sinks.sync_detailed(client=client, limit=1, cursor=cursor))
    listed += [sink.name for sink in page.data]
    pages, cursor = pages + 1, page.next_cursor

got = taken(get_sink.sync_detailed(str(first.id), client=client))
body = SinkInput(batch_size=45, annotations=SinkInputAnnotations.from_dict({"team": prefix}))
edited = taken(update_sink.sync_detailed(pull, client=client, body=body))
paused = taken(get_sink.sync_detailed(web, client=client))
resumed = taken(update_sink.sync_detailed(web, client=client, body=SinkInput(status=SinkInputStatus.ACTIVE)))

records, acked = [], []
for sink in (pull, web):
    taken(create_backfill.sync_detailed(sink, client=client, body=BackfillInput()))
while len(records) < 2:
    messages = taken(receive.sync_detailed(pull, client=client, body=ReceiveBody(batch_size=10, wait_for="4s"))).data
    records += [message.record.to_dict() for message in messages]
    if messages:
        body = AckBody(ack_ids=[message.ack_id for message in messages])
        acked.append(taken(ack.sync_detailed(pull, client=client, body=body)).success)


def backfills(sink):
    return taken(list_backfills.sync_detailed(sink, client=client)).data


while any(backfill.state is not BackfillState.COMPLETED for backfill in backfills(pull) + backfills(web)):
    pass
backfill = backfills(pull)[0]

exported = taken(export_config.sync_detailed(client=client)).yaml
planned = taken(plan_config.sync_detailed(client=client, body=ConfigInput(exported)))
other = ConfigInput(exported.replace("batch_size: 45", "batch_size: 60"))
other = taken(plan_config.sync_detailed(client=client, body=other))

invalid = update_sink.sync_detailed(pull, client=client, body=SinkInput(batch_size=0))
unknown = list_sinks.sync_detailed(client=AuthenticatedClient(given["url"], "not-a-token"))
deleted = [
    taken(delete_sink.sync_detailed(pull, client=client)).deleted,
    taken(delete_sink.sync_detailed(web, client=client)).deleted,
    taken(delete_http_endpoint.sync_detailed(hook, client=client)).deleted,
    taken(delete_database.sync_detailed(shop, client=client)).success,
]
gone = get_sink.sync_detailed(pull, client=client)

seen = {
    "database": {
        "name": made.name,
        "slots": [one.slot_name for one in made.replication_slots],
        "reached": reached.success,
    },
    "tables": [{"name": table.name, "primary_key": table.primary_key} for table in tables.data],
    "pages": {"listed": listed, "pages": pages},
    "got": {"name": got.name, "destination": got.destination.type_, "source": got.source.include_tables},
    "edited": {"batch_size": edited.batch_size, "annotations": edited.annotations.to_dict()},
    "states": [paused.status, resumed.status],
    "records": sorted(records, key=lambda record: record["id"]),
    "acked": all(acked),
    "backfill": {
        "table": backfill.table,
        "rows": backfill.rows_processed_count,
        "completed": backfill.completed_at is not None,
    },
    "planned": len(planned.changes),
    "other": [
        {"resource_type": change.resource_type, "action": change.action, "name": change.name} for change in other.changes
    ],
    "refused": [refused(invalid), refused(unknown), refused(gone)],
    "deleted": deleted,
}
print(json.dumps(seen))
