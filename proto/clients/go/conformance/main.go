// Command conformance runs the scenario that all clients run against one server: conformance SERVER.json prints the results.
// conformance rollout TARGET SECONDS calls a server while it is replaced.
// conformance dead-server TARGET prints the code of a stream whose server dies after the second request.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"dragoman"
	"dragoman/example"
	pb "dragoman/v1"
)

var server struct {
	Target, CA, Certificate, Private_Key, Server_Name, Key, Limited_Key, Wrong_Key, Long_Text string
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func connect(key string, options dragoman.Options) (*dragoman.Client, error) {
	options.APIKey = key
	options.TLS = &dragoman.TLSOptions{CA: must(os.ReadFile(server.CA)), ServerName: server.Server_Name,
		Certificate: must(os.ReadFile(server.Certificate)), PrivateKey: must(os.ReadFile(server.Private_Key))}
	return dragoman.NewClient(server.Target, options)
}

func request(options *pb.DecodingOptions, texts ...string) *pb.TranslateRequest {
	return &pb.TranslateRequest{Texts: texts, SourceLanguage: "en", TargetLanguage: "de", Options: options}
}

func texts(response *pb.TranslateResponse) (result []string) {
	for _, translation := range response.Translations {
		result = append(result, translation.Hypotheses[0].Text)
	}
	return result
}

func outcome(_ any, err error) []any {
	if err == nil {
		return []any{"OK"}
	}
	details := dragoman.Details(err)
	names := map[codes.Code]string{codes.InvalidArgument: "INVALID_ARGUMENT", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
		codes.Unauthenticated: "UNAUTHENTICATED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED"}
	result := []any{names[status.Code(err)], details.Reason}
	for _, violation := range details.FieldViolations {
		result = append(result, violation.Field)
	}
	return append(result, details.RetryAfter > 0)
}

func stream(client *dragoman.Client) map[string]string {
	results := map[string]string{}
	call := must(client.Translation.TranslateStream(context.Background()))
	for id, message := range map[string]*pb.TranslateRequest{"r0": request(nil, "Thank you."),
		"r1": request(nil, "Where is the station?"), "r2": request(&pb.DecodingOptions{BeamSize: proto.Int32(99)}, "Hello.")} {
		message.RequestId = id
		must(0, call.Send(message))
	}
	must(0, call.CloseSend())
	for response, err := call.Recv(); err != io.EOF; response, err = call.Recv() {
		if must(response, err).Error != nil {
			results[response.RequestId] = dragoman.ResponseDetails(response).Reason
		} else {
			results[response.RequestId] = texts(response)[0]
		}
	}
	return results
}

func document(client *dragoman.Client) (result string) {
	call := must(client.Translation.TranslateDocument(context.Background(), &pb.TranslateDocumentRequest{
		Text: "Where is the station? Thank you.", SourceLanguage: "en", TargetLanguage: "de"}))
	for sentence, err := call.Recv(); err != io.EOF; sentence, err = call.Recv() {
		result += must(sentence, err).Text
	}
	return result
}

func post(client *dragoman.Client) []any {
	service := httptest.NewServer(example.Handler(client))
	defer service.Close()
	response := must(http.Post(service.URL, "text/plain", strings.NewReader("Where is the station?")))
	defer response.Body.Close()
	body := strings.TrimSpace(string(must(io.ReadAll(response.Body))))
	return []any{response.StatusCode, body, response.Header.Get("Retry-After") != ""}
}

// rollout calls a server for some seconds over one client, and prints the calls, the failures and the longest call.
func rollout(target string, seconds string) {
	client := must(dragoman.NewClient(target, dragoman.Options{}))
	calls, failed, longest := 0, 0, time.Duration(0)
	for end := time.Now().Add(must(time.ParseDuration(seconds + "s"))); time.Now().Before(end); calls++ {
		began := time.Now()
		if _, err := client.Translation.Translate(context.Background(), request(nil, "Hello.")); err != nil {
			failed++
		}
		longest = max(longest, time.Since(began))
		time.Sleep(20 * time.Millisecond)
	}
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls": calls, "failed": failed, "longest_s": longest.Seconds()}))
}

// deadServer calls each kind of method without a timeout, and prints the code of the stream.
func deadServer(target string) {
	client, ctx := must(dragoman.NewClient(target, dragoman.Options{})), context.Background()
	must(client.Translation.Translate(ctx, request(nil, "Hello.")))
	document(client)
	call := must(client.Translation.TranslateStream(ctx))
	must(0, call.Send(request(nil, "Hello.")))
	must(call.Recv())
	must(0, call.Send(request(nil, "Hello.")))
	_, err := call.Recv()
	fmt.Println(strings.ToUpper(status.Code(err).String()))
}

func main() {
	switch os.Args[1] {
	case "rollout":
		rollout(os.Args[2], os.Args[3])
		return
	case "dead-server":
		deadServer(os.Args[2])
		return
	}
	must(0, json.Unmarshal(must(os.ReadFile(os.Args[1])), &server))
	client := must(connect(server.Key, dragoman.Options{}))
	limited := must(connect(server.Limited_Key, dragoman.Options{MaxAttempts: 1}))
	retrying := must(connect(server.Limited_Key, dragoman.Options{}))
	hasty := must(connect(server.Key, dragoman.Options{Timeout: 50 * time.Millisecond}))
	stranger := must(connect(server.Wrong_Key, dragoman.Options{}))
	_, plaintext := dragoman.NewClient("example.org:50051", dragoman.Options{APIKey: server.Key})
	_, local := dragoman.NewClient("localhost:50051", dragoman.Options{APIKey: server.Key})
	_, attempts := connect(server.Key, dragoman.Options{MaxAttempts: 6})
	ctx := context.Background()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	late := outcome(client.Translation.Translate(short, request(nil, server.Long_Text)))[0]
	cancel()
	var nBest []string
	for _, hypothesis := range must(client.Translation.Translate(ctx, request(
		&pb.DecodingOptions{NumHypotheses: proto.Int32(3)}, "The weather is nice today."))).Translations[0].Hypotheses {
		nBest = append(nBest, hypothesis.Text)
	}
	hello := request(nil, "Hello.")
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"translate": texts(must(client.Translation.Translate(ctx, request(nil, "Where is the station?", "Thank you.")))),
		"n_best":    nBest,
		"markup": texts(must(client.Translation.Translate(ctx, request(
			&pb.DecodingOptions{Format: pb.TextFormat_TEXT_FORMAT_HTML}, "<p>Open the <code>big file</code>.</p>")))),
		"invalid": outcome(client.Translation.Translate(ctx, request(
			&pb.DecodingOptions{BeamSize: proto.Int32(99)}, "Hello."))),
		"deadline":         late,
		"default_deadline": outcome(hasty.Translation.Translate(ctx, request(nil, server.Long_Text)))[0],
		"stream":           stream(client),
		"document":         document(client),
		"wrong_key":        outcome(stranger.Translation.Translate(ctx, hello)),
		"plaintext":        []bool{plaintext != nil, local != nil},
		"attempts":         attempts != nil,
		"http":             post(client),
		"admitted":         outcome(limited.Translation.Translate(ctx, hello)),
		"rejected":         outcome(limited.Translation.Translate(ctx, hello)),
		"retried":          texts(must(retrying.Translation.Translate(ctx, hello))),
		"http_rejected":    post(limited),
	}))
}
