// Package dragoman calls a Dragoman translation server: the generated stubs with deadlines, retries, API keys and TLS.
package dragoman

//go:generate go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
//go:generate go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
//go:generate npx --yes --ignore-scripts @bufbuild/buf@1.75.0 generate

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "dragoman/v1"
)

// TLSOptions are the options of a TLS connection; the content of PEM files.
type TLSOptions struct {
	CA          []byte // trusted certificate authorities; nil: those of the system
	Certificate []byte // certificate chain of the client for mutual TLS; requires PrivateKey
	PrivateKey  []byte
	ServerName  string // name in the certificate of the server; empty: the host of the target
}

// Options of a client; the zero value has the defaults.
type Options struct {
	Timeout            time.Duration // default deadline of a call, including retries; 0: 30 s, and none for documents and streams
	APIKey             string        // API key of each call; surrounding white space is removed
	TLS                *TLSOptions   // encrypts the connection; nil: no encryption
	IsPlaintextTrusted bool          // allow an API key without TLS to another machine
	MaxAttempts        int           // attempts of a call, including the first, 1 to 5; 1 disables retries; 0: 4
}

// ErrorDetails are the details of an error in addition to code and message.
type ErrorDetails struct {
	Reason          string // such as OVERLOADED; empty if gRPC or a proxy created the status
	Metadata        map[string]string
	FieldViolations []*errdetails.BadRequest_FieldViolation
	RetryAfter      time.Duration // delay after which the same request may succeed; 0: unknown
}

// Client calls a server. One client per process and target is enough.
type Client struct {
	Translation pb.TranslationServiceClient
	Models      pb.ModelServiceClient
	connection  *grpc.ClientConn
}

var validKey = regexp.MustCompile(`^[!-~]+$`)

// NewClient prepares a connection to host:port or another gRPC target. The first call connects.
func NewClient(target string, options Options) (*Client, error) {
	timeout, attempts := cmp.Or(options.Timeout, 30*time.Second), cmp.Or(options.MaxAttempts, 4)
	if timeout < 0 {
		return nil, fmt.Errorf("Timeout is %v, must be above 0", timeout)
	}
	if attempts < 1 || attempts > 5 {
		return nil, fmt.Errorf("MaxAttempts is %d, must be 1 to 5", attempts)
	}
	key := strings.TrimSpace(options.APIKey)
	if options.APIKey != "" && !validKey.MatchString(key) {
		return nil, errors.New("APIKey must be one or more printable ASCII characters without spaces")
	}
	if key != "" && options.TLS == nil && !options.IsPlaintextTrusted && !isLocal(target) {
		return nil, fmt.Errorf("the connection to %s is not encrypted: set TLS or IsPlaintextTrusted", target)
	}
	transport, err := options.TLS.credentials()
	if err != nil {
		return nil, err
	}
	defaults := callDefaults{timeout, options.Timeout, key}
	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(serviceConfig(attempts)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallSendMsgSize(4<<20), grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxRetryRPCBufferSize(4<<20)),
		grpc.WithUnaryInterceptor(defaults.unary),
		grpc.WithStreamInterceptor(defaults.stream),
	)
	if err != nil {
		return nil, err
	}
	return &Client{pb.NewTranslationServiceClient(connection), pb.NewModelServiceClient(connection), connection}, nil
}

// Close cancels running calls and disconnects.
func (c *Client) Close() error { return c.connection.Close() }

// Details returns the details of an error of a call; empty for other errors.
func Details(err error) ErrorDetails {
	return statusDetails(status.Convert(err).Details())
}

// ResponseDetails returns the details of a failed request of TranslateStream.
func ResponseDetails(response *pb.TranslateResponse) ErrorDetails {
	return statusDetails(status.FromProto(response.GetError()).Details())
}

func statusDetails(messages []any) (details ErrorDetails) {
	for _, message := range messages {
		switch message := message.(type) {
		case *errdetails.ErrorInfo:
			if message.Domain == "dragoman" {
				details.Reason, details.Metadata = message.Reason, message.Metadata
			}
		case *errdetails.BadRequest:
			details.FieldViolations = message.FieldViolations
		case *errdetails.RetryInfo:
			details.RetryAfter = message.RetryDelay.AsDuration()
		}
	}
	return details
}

// callDefaults adds the default deadline and the API key to each call.
type callDefaults struct {
	timeout       time.Duration
	streamTimeout time.Duration // 0: the server limits the time of documents and streams
	key           string
}

func (d callDefaults) context(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if d.key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+d.key)
	}
	if _, hasDeadline := ctx.Deadline(); hasDeadline || timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

func (d callDefaults) unary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, cancel := d.context(ctx, d.timeout)
	defer cancel()
	return invoke(ctx, method, request, reply, connection, options...)
}

func (d callDefaults) stream(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn,
	method string, start grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := d.context(ctx, d.streamTimeout)
	options = append(options, grpc.OnFinish(func(error) { cancel() }))
	stream, err := start(ctx, description, connection, method, options...)
	if err != nil {
		cancel()
	}
	return stream, err
}

func (t *TLSOptions) credentials() (credentials.TransportCredentials, error) {
	if t == nil {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(t.CA) {
			return nil, errors.New("TLS.CA has no certificate in PEM format")
		}
	}
	if t.Certificate != nil || t.PrivateKey != nil {
		pair, err := tls.X509KeyPair(t.Certificate, t.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("TLS.Certificate and TLS.PrivateKey: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// serviceConfig returns the retries and the load balancing of a channel. The retry delay of the server replaces the
// backoff, and a backoff ends with the deadline.
func serviceConfig(attempts int) string {
	policy := ""
	if attempts > 1 {
		policy = fmt.Sprintf(`, "retryPolicy": {"maxAttempts": %d, "initialBackoff": "0.2s", "maxBackoff": "5s",
			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"]}`, attempts)
	}
	return `{"loadBalancingConfig": [{"round_robin": {}}], "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
		"methodConfig": [{"name": [{"service": "dragoman.v1.TranslationService"}, {"service": "dragoman.v1.ModelService"}]` +
		policy + `}]}`
}

// isLocal returns whether a target is certainly on this machine.
func isLocal(target string) bool {
	host := strings.TrimPrefix(strings.TrimPrefix(target, "dns:"), "///")
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.HasPrefix(target, "unix:") || strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
