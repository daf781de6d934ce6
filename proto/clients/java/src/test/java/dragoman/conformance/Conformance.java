package dragoman.conformance;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpServer;
import dragoman.client.ClientOptions;
import dragoman.client.ErrorDetails;
import dragoman.client.TranslationClient;
import dragoman.example.TranslateHandler;
import dragoman.v1.DecodingOptions;
import dragoman.v1.Hypothesis;
import dragoman.v1.TextFormat;
import dragoman.v1.TranslateDocumentRequest;
import dragoman.v1.TranslateRequest;
import dragoman.v1.TranslateResponse;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** The scenario that all clients run against one server: {@code Conformance SERVER.json} prints the results. */
public final class Conformance {
  private final JsonObject server;

  private Conformance(JsonObject server) {
    this.server = server;
  }

  public static void main(String[] arguments) throws Exception {
    var server = JsonParser.parseString(Files.readString(Path.of(arguments[0]))).getAsJsonObject();
    System.out.println(new Gson().toJson(new Conformance(server).results()));
    System.exit(0); // channels are still open
  }

  private Map<String, Object> results() throws Exception {
    var defaults = ClientOptions.defaults();
    var client = connect("key", defaults);
    var limited = connect("limited_key", defaults.withMaxAttempts(1));
    var hasty = connect("key", defaults.withTimeout(Duration.ofMillis(50)));
    var longText = request(options(), setting("long_text"));
    var hello = request(options(), "Hello.");
    var results = new LinkedHashMap<String, Object>();
    results.put("translate", texts(client, request(options(), "Where is the station?", "Thank you.")));
    results.put("n_best", client.translation()
        .translate(request(options().setNumHypotheses(3), "The weather is nice today."))
        .getTranslations(0).getHypothesesList().stream().map(Hypothesis::getText).toList());
    var html = options().setFormat(TextFormat.TEXT_FORMAT_HTML);
    results.put("markup", texts(client, request(html, "<p>Open the <code>big file</code>.</p>")));
    results.put("invalid", outcome(() -> texts(client, request(options().setBeamSize(99), "Hello."))));
    results.put("deadline", outcome(
        () -> client.translation().withDeadlineAfter(50, TimeUnit.MILLISECONDS).translate(longText)).get(0));
    results.put("default_deadline", outcome(() -> texts(hasty, longText)).get(0));
    results.put("stream", stream(client));
    results.put("document", document(client));
    results.put("wrong_key", outcome(() -> texts(connect("wrong_key", defaults), hello)));
    var withKey = defaults.withApiKey(setting("key"));
    results.put("plaintext", List.of(
        isRejected(() -> new TranslationClient("example.org:50051", withKey)),
        isRejected(() -> new TranslationClient("localhost:50051", withKey))));
    results.put("attempts", isRejected(() -> defaults.withMaxAttempts(6)));
    results.put("http", post(client));
    results.put("admitted", outcome(() -> texts(limited, hello)));
    results.put("rejected", outcome(() -> texts(limited, hello)));
    results.put("retried", texts(connect("limited_key", defaults), hello));
    results.put("http_rejected", post(limited));
    return results;
  }

  private String setting(String name) {
    return server.get(name).getAsString();
  }

  private byte[] file(String name) throws IOException {
    return Files.readAllBytes(Path.of(setting(name)));
  }

  private TranslationClient connect(String key, ClientOptions options) throws Exception {
    var tls = new ClientOptions.TlsOptions(
        file("ca"), file("certificate"), file("private_key"), setting("server_name"));
    return new TranslationClient(setting("target"), options.withApiKey(setting(key)).withTls(tls));
  }

  private static DecodingOptions.Builder options() {
    return DecodingOptions.newBuilder();
  }

  private static TranslateRequest request(DecodingOptions.Builder options, String... texts) {
    return TranslateRequest.newBuilder().addAllTexts(List.of(texts))
        .setSourceLanguage("en").setTargetLanguage("de").setOptions(options).build();
  }

  private static List<String> texts(TranslationClient client, TranslateRequest request) {
    return texts(client.translation().translate(request));
  }

  private static List<String> texts(TranslateResponse response) {
    return response.getTranslationsList().stream().map(item -> item.getHypotheses(0).getText()).toList();
  }

  private static List<Object> outcome(Callable<?> call) throws Exception {
    try {
      call.call();
      return List.of("OK");
    } catch (StatusRuntimeException error) {
      var details = ErrorDetails.of(error);
      var result = new ArrayList<Object>(List.of(error.getStatus().getCode().name(), details.reason()));
      details.fieldViolations().forEach(violation -> result.add(violation.getField()));
      result.add(details.retryAfter().isPresent());
      return result;
    }
  }

  private static boolean isRejected(Callable<?> build) throws Exception {
    try {
      build.call();
      return false;
    } catch (IllegalArgumentException error) {
      return true;
    }
  }

  private static Map<String, String> stream(TranslationClient client) throws Exception {
    var results = new ConcurrentHashMap<String, String>();
    var end = new CompletableFuture<Map<String, String>>();
    var requests = client.asyncTranslation().translateStream(new StreamObserver<TranslateResponse>() {
      @Override
      public void onNext(TranslateResponse response) {
        results.put(response.getRequestId(), response.hasError()
            ? ErrorDetails.of(response.getError()).reason() : texts(response).get(0));
      }

      @Override
      public void onError(Throwable error) {
        end.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        end.complete(results);
      }
    });
    requests.onNext(request(options(), "Thank you.").toBuilder().setRequestId("r0").build());
    requests.onNext(request(options(), "Where is the station?").toBuilder().setRequestId("r1").build());
    requests.onNext(request(options().setBeamSize(99), "Hello.").toBuilder().setRequestId("r2").build());
    requests.onCompleted();
    return end.get();
  }

  private static String document(TranslationClient client) {
    var request = TranslateDocumentRequest.newBuilder().setText("Where is the station? Thank you.")
        .setSourceLanguage("en").setTargetLanguage("de").build();
    var result = new StringBuilder();
    client.translation().translateDocument(request).forEachRemaining(sentence -> result.append(sentence.getText()));
    return result.toString();
  }

  private static List<Object> post(TranslationClient client) throws Exception {
    var service = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    service.createContext("/", new TranslateHandler(client));
    service.start();
    var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + service.getAddress().getPort()))
        .POST(HttpRequest.BodyPublishers.ofString("Where is the station?")).build();
    var response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    service.stop(0);
    return List.of(
        response.statusCode(), response.body(), response.headers().firstValue("Retry-After").isPresent());
  }
}
