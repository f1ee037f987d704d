// What a program does with the client that oapi-codegen makes of the OpenAPI document: the same as scenario.ts. The client is the package api beside it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strings"

	"generatedclient/api"
)

type object = map[string]any

var given struct {
	Url, Token, Receiver, Prefix, Slot string
	Database                           struct {
		Hostname, Database, Username, Password string
		Port                                   int
	}
}
var ctx = context.Background()

func ptr[T any](value T) *T { return &value }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// What a success holds: nil in an answer of another status.
func taken[T any](answer *T, status int, body []byte) *T {
	if answer == nil {
		panic(fmt.Sprintf("%d: %s", status, body))
	}
	return answer
}

func refused(status int, answer *api.Error) object {
	fields := []string{}
	if answer.ValidationErrors != nil {
		for field := range *answer.ValidationErrors {
			fields = append(fields, field)
		}
	}
	return object{"status": status, "code": answer.Code, "fields": fields}
}

func connect(token string) *api.ClientWithResponses {
	return must(api.NewClientWithResponses(given.Url, api.WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+token)
		return nil
	})))
}

func main() {
	if err := json.Unmarshal([]byte(os.Getenv("GIVEN")), &given); err != nil {
		panic(err)
	}
	client := connect(given.Token)
	shop, hook, pull, web := given.Prefix+"-shop", given.Prefix+"-hook", given.Prefix+"-pull", given.Prefix+"-web"

	var ssl api.DatabaseInput_Ssl
	must(0, ssl.FromDatabaseInputSsl1(false))
	database := must(client.CreateDatabaseWithResponse(ctx, api.DatabaseInput{
		Name: &shop, Hostname: &given.Database.Hostname, Port: &given.Database.Port, Database: &given.Database.Database,
		Username: &given.Database.Username, Password: &given.Database.Password, Ssl: &ssl, PoolSize: ptr(2),
		ReplicationSlots: &[]api.ReplicationSlotInput{{
			SlotName: ptr(given.Slot + "_" + given.Prefix + "_slot"), PublicationName: ptr(given.Slot + "_" + given.Prefix + "_pub"),
			CreateIfNotExists: ptr(true),
		}},
	}))
	made := taken(database.JSON201, database.StatusCode(), database.Body)
	tested := must(client.TestDatabaseWithResponse(ctx, made.Id.String()))
	reached := taken(tested.JSON200, tested.StatusCode(), tested.Body)
	tables := must(client.ListTablesWithResponse(ctx, shop, nil))
	listedTables := []object{}
	for _, table := range taken(tables.JSON200, tables.StatusCode(), tables.Body).Data {
		listedTables = append(listedTables, object{"name": table.Name, "primary_key": table.PrimaryKey})
	}

	var headers api.HttpEndpointInput_Headers
	must(0, headers.FromHttpEndpointInputHeaders0(map[string]string{"x-shop": given.Prefix}))
	endpoint := must(client.CreateHttpEndpointWithResponse(ctx, api.HttpEndpointInput{Name: &hook, Url: &given.Receiver, Headers: &headers}))
	taken(endpoint.JSON200, endpoint.StatusCode(), endpoint.Body)

	source := &api.SourceFilter{IncludeTables: &[]string{"public.customers"}}
	var toPull, toWeb api.DestinationInput
	must(0, toPull.FromSequinStreamDestinationInput(api.SequinStreamDestinationInput{Type: ptr(api.SequinStreamDestinationInputTypeSequinStream)}))
	must(0, toWeb.FromWebhookDestinationInput(api.WebhookDestinationInput{
		Type: ptr(api.WebhookDestinationInputTypeWebhook), HttpEndpoint: &hook, Batch: ptr(false),
	}))
	created := must(client.CreateSinkWithResponse(ctx, api.SinkInput{Name: &pull, Database: &shop, Source: source, Destination: &toPull}))
	first := taken(created.JSON200, created.StatusCode(), created.Body)
	created = must(client.CreateSinkWithResponse(ctx, api.SinkInput{
		Name: &web, Database: &shop, Source: source, Destination: &toWeb, Status: ptr(api.SinkInputStatusPaused),
	}))
	taken(created.JSON200, created.StatusCode(), created.Body)

	listed, pages := []string{}, 0
	for cursor := (*string)(nil); pages == 0 || cursor != nil; pages++ {
		answer := must(client.ListSinksWithResponse(ctx, &api.ListSinksParams{Limit: ptr(1), Cursor: cursor}))
		page := taken(answer.JSON200, answer.StatusCode(), answer.Body)
		for _, sink := range page.Data {
			listed = append(listed, sink.Name)
		}
		cursor = page.NextCursor
	}

	read := must(client.GetSinkWithResponse(ctx, first.Id.String()))
	got := taken(read.JSON200, read.StatusCode(), read.Body)
	updated := must(client.UpdateSinkWithResponse(ctx, pull, api.SinkInput{
		BatchSize: ptr(45), Annotations: &object{"team": given.Prefix},
	}))
	edited := taken(updated.JSON200, updated.StatusCode(), updated.Body)
	read = must(client.GetSinkWithResponse(ctx, web))
	paused := taken(read.JSON200, read.StatusCode(), read.Body)
	updated = must(client.UpdateSinkWithResponse(ctx, web, api.SinkInput{Status: ptr(api.SinkInputStatusActive)}))
	resumed := taken(updated.JSON200, updated.StatusCode(), updated.Body)

	for _, sink := range []string{pull, web} {
		answer := must(client.CreateBackfillWithResponse(ctx, sink, api.BackfillInput{}))
		taken(answer.JSON200, answer.StatusCode(), answer.Body)
	}
	records, acked := []object{}, true
	var batch api.ReceiveJSONBody_BatchSize
	must(0, batch.FromReceiveJSONBodyBatchSize0(10))
	var wait api.ReceiveJSONBody_WaitFor
	must(0, wait.FromReceiveJSONBodyWaitFor1("4s"))
	for len(records) < 2 {
		answer := must(client.ReceiveWithResponse(ctx, pull, api.ReceiveJSONRequestBody{BatchSize: &batch, WaitFor: &wait}))
		ids := []string{}
		for _, message := range taken(answer.JSON200, answer.StatusCode(), answer.Body).Data {
			records = append(records, *message.Record)
			ids = append(ids, message.AckId)
		}
		if len(ids) > 0 {
			done := must(client.AckWithResponse(ctx, pull, api.AckJSONRequestBody{AckIds: ids}))
			acked = acked && bool(taken(done.JSON200, done.StatusCode(), done.Body).Success)
		}
	}
	sort.Slice(records, func(a, b int) bool { return records[a]["id"].(float64) < records[b]["id"].(float64) })
	backfills := func(sink string) []api.Backfill {
		answer := must(client.ListBackfillsWithResponse(ctx, sink, nil))
		return taken(answer.JSON200, answer.StatusCode(), answer.Body).Data
	}
	for isOpen := true; isOpen; {
		isOpen = false
		for _, backfill := range append(backfills(pull), backfills(web)...) {
			isOpen = isOpen || backfill.State != api.BackfillStateCompleted
		}
	}
	backfill := backfills(pull)[0]

	export := must(client.ExportConfigWithResponse(ctx, nil))
	yaml := taken(export.JSON200, export.StatusCode(), export.Body).Yaml
	plan := func(yaml string) []object {
		answer := must(client.PlanConfigWithResponse(ctx, api.ConfigInput{Yaml: yaml}))
		changes := []object{}
		for _, change := range taken(answer.JSON200, answer.StatusCode(), answer.Body).Changes {
			changes = append(changes, object{"resource_type": change.ResourceType, "action": change.Action, "name": change.Name})
		}
		return changes
	}
	planned := plan(yaml)
	other := plan(strings.Replace(yaml, "batch_size: 45", "batch_size: 60", 1))

	invalid := must(client.UpdateSinkWithResponse(ctx, pull, api.SinkInput{BatchSize: ptr(0)}))
	unknown := must(connect("not-a-token").ListSinksWithResponse(ctx, nil))
	deleted := []bool{}
	for _, sink := range []string{pull, web} {
		answer := must(client.DeleteSinkWithResponse(ctx, sink))
		deleted = append(deleted, bool(taken(answer.JSON200, answer.StatusCode(), answer.Body).Deleted))
	}
	withoutHook := must(client.DeleteHttpEndpointWithResponse(ctx, hook))
	deleted = append(deleted, bool(taken(withoutHook.JSON200, withoutHook.StatusCode(), withoutHook.Body).Deleted))
	withoutShop := must(client.DeleteDatabaseWithResponse(ctx, shop))
	deleted = append(deleted, taken(withoutShop.JSON200, withoutShop.StatusCode(), withoutShop.Body).Success)
	gone := must(client.GetSinkWithResponse(ctx, pull))

	slots := []string{}
	for _, slot := range made.ReplicationSlots {
		slots = append(slots, slot.SlotName)
	}
	seen := object{
		"database": object{"name": made.Name, "slots": slots, "reached": reached.Success},
		"tables":   listedTables,
		"pages":    object{"listed": listed, "pages": pages},
		"got":      object{"name": got.Name, "destination": must(got.Destination.AsSequinStreamDestination()).Type, "source": got.Source.IncludeTables},
		"edited":   object{"batch_size": edited.BatchSize, "annotations": edited.Annotations},
		"states":   []any{paused.Status, resumed.Status},
		"records":  records,
		"acked":    acked,
		"backfill": object{"table": backfill.Table, "rows": backfill.RowsProcessedCount, "completed": backfill.CompletedAt != nil},
		"planned":  len(planned),
		"other":    other,
		"refused": []object{
			refused(invalid.StatusCode(), invalid.JSON422), refused(unknown.StatusCode(), unknown.JSON401), refused(gone.StatusCode(), gone.JSON404),
		},
		"deleted": deleted,
	}
	must(0, json.NewEncoder(os.Stdout).Encode(seen))
}
