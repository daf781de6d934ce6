package dragoman.client;

import dragoman.v1.ModelServiceGrpc;
import dragoman.v1.TranslationServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.TlsChannelCredentials;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Calls a server: the generated stubs with deadlines, retries, API keys and TLS. One per process and target is enough. */
public final class TranslationClient implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private final ManagedChannel channel;

  /**
   * Prepares a connection. The first call connects.
   *
   * @param target {@code host:port} or another gRPC target
   * @param options see {@link ClientOptions}
   * @throws IOException if TLS options are not PEM
   * @throws IllegalArgumentException if the API key would be sent unencrypted over a network
   */
  public TranslationClient(String target, ClientOptions options) throws IOException {
    var tls = options.tls();
    if (options.apiKey() != null && tls == null && !options.isPlaintextTrusted() && !isLocal(target)) {
      throw new IllegalArgumentException(
          "the connection to " + target + " is not encrypted: set tls or isPlaintextTrusted");
    }
    var builder =
        Grpc.newChannelBuilder(target, credentials(tls))
            .enableRetry()
            .defaultServiceConfig(serviceConfig(options.maxAttempts()))
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(20, TimeUnit.SECONDS)
            .maxInboundMessageSize(16 << 20)
            .perRpcBufferLimit(4 << 20)
            .intercept(new CallDefaults(options));
    if (tls != null && tls.serverName() != null) {
      builder.overrideAuthority(tls.serverName());
    }
    channel = builder.build();
  }

  /** Returns the blocking stub; {@code withDeadlineAfter} replaces the deadline of this client. */
  public TranslationServiceGrpc.TranslationServiceBlockingStub translation() {
    return TranslationServiceGrpc.newBlockingStub(channel);
  }

  /** Returns the asynchronous stub, which {@code translateStream} requires. */
  public TranslationServiceGrpc.TranslationServiceStub asyncTranslation() {
    return TranslationServiceGrpc.newStub(channel);
  }

  /** Returns the blocking stub of models and glossaries. */
  public ModelServiceGrpc.ModelServiceBlockingStub models() {
    return ModelServiceGrpc.newBlockingStub(channel);
  }

  /** Cancels running calls and disconnects. */
  @Override
  public void close() {
    channel.shutdownNow();
  }

  private record CallDefaults(ClientOptions options) implements ClientInterceptor {
    private static final Duration UNARY_TIMEOUT = Duration.ofSeconds(30);

    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions call, Channel next) {
      var timeout = options.timeout();
      if (timeout == null && method.getType() == MethodDescriptor.MethodType.UNARY) {
        timeout = UNARY_TIMEOUT;
      }
      if (call.getDeadline() == null && timeout != null) {
        call = call.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS);
      }
      return new SimpleForwardingClientCall<>(next.newCall(method, call)) {
        @Override
        public void start(Listener<R> listener, Metadata headers) {
          if (options.apiKey() != null) {
            headers.put(AUTHORIZATION, "Bearer " + options.apiKey());
          }
          super.start(listener, headers);
        }
      };
    }
  }

  private static ChannelCredentials credentials(ClientOptions.TlsOptions tls) throws IOException {
    if (tls == null) {
      return InsecureChannelCredentials.create();
    }
    var builder = TlsChannelCredentials.newBuilder();
    if (tls.ca() != null) {
      builder.trustManager(new ByteArrayInputStream(tls.ca()));
    }
    if (tls.certificate() != null) {
      builder.keyManager(new ByteArrayInputStream(tls.certificate()), new ByteArrayInputStream(tls.privateKey()));
    }
    return builder.build();
  }

  /** The retry delay of the server replaces the backoff; a backoff ends with the deadline. */
  private static Map<String, Object> serviceConfig(int maxAttempts) {
    var methods = new HashMap<String, Object>();
    methods.put("name", List.of(
        Map.of("service", "dragoman.v1.TranslationService"), Map.of("service", "dragoman.v1.ModelService")));
    if (maxAttempts > 1) {
      methods.put("retryPolicy", Map.of(
          "maxAttempts", (double) maxAttempts,
          "initialBackoff", "0.2s",
          "maxBackoff", "5s",
          "backoffMultiplier", 2.0,
          "retryableStatusCodes", List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")));
    }
    return Map.of(
        "loadBalancingConfig", List.of(Map.of("round_robin", Map.of())),
        "methodConfig", List.of(methods),
        "retryThrottling", Map.of("maxTokens", 100.0, "tokenRatio", 0.1));
  }

  /** Returns whether a target is certainly on this machine. */
  private static boolean isLocal(String target) {
    String address = target.replaceFirst("^dns:(///)?", "");
    return target.startsWith("unix:")
        || address.matches("(?i)(localhost|127(\\.\\d{1,3}){3}|\\[::1\\])(:\\d+)?");
  }
}
