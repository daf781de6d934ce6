package dragoman.example;

import static java.nio.charset.StandardCharsets.UTF_8;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import dragoman.client.ErrorDetails;
import dragoman.client.TranslationClient;
import dragoman.v1.TranslateRequest;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Translates English text into German: POST / with the text as body. */
public record TranslateHandler(TranslationClient client) implements HttpHandler {
  private static final int MAX_BYTES = 40_000;
  private static final Map<Status.Code, Integer> HTTP_STATUS = Map.of(
      Status.Code.INVALID_ARGUMENT, 400,
      Status.Code.RESOURCE_EXHAUSTED, 503,
      Status.Code.UNAVAILABLE, 503,
      Status.Code.DEADLINE_EXCEEDED, 504);

  @Override
  public void handle(HttpExchange exchange) throws IOException {
    byte[] body = exchange.getRequestBody().readNBytes(MAX_BYTES + 1);
    if (body.length > MAX_BYTES) {
      respond(exchange, 413, "text is too long");
      return;
    }
    var request = TranslateRequest.newBuilder()
        .addTexts(new String(body, UTF_8)).setSourceLanguage("en").setTargetLanguage("de").build();
    try {
      var response = client.translation().withDeadlineAfter(5, TimeUnit.SECONDS).translate(request);
      respond(exchange, 200, response.getTranslations(0).getHypotheses(0).getText());
    } catch (StatusRuntimeException error) {
      ErrorDetails.of(error).retryAfter().ifPresent(delay ->
          exchange.getResponseHeaders().set("Retry-After", Long.toString(delay.plusNanos(999_999_999).toSeconds())));
      respond(exchange, HTTP_STATUS.getOrDefault(error.getStatus().getCode(), 500), "translation failed");
    }
  }

  private static void respond(HttpExchange exchange, int status, String text) throws IOException {
    try (exchange) {
      byte[] bytes = text.getBytes(UTF_8);
      exchange.sendResponseHeaders(status, bytes.length);
      exchange.getResponseBody().write(bytes);
    }
  }
}
