package dragoman.conformance;

import com.google.gson.Gson;
import dragoman.client.ClientOptions;
import dragoman.client.TranslationClient;
import dragoman.v1.TranslateRequest;
import io.grpc.StatusRuntimeException;
import java.util.Map;

/** Calls a server while it is replaced: {@code Rollout TARGET SECONDS} prints calls, failures and the longest call. */
public final class Rollout {
  private Rollout() {}

  public static void main(String[] arguments) throws Exception {
    var client = new TranslationClient(arguments[0], ClientOptions.defaults());
    var request = TranslateRequest.newBuilder()
        .addTexts("Hello.").setSourceLanguage("en").setTargetLanguage("de").build();
    var calls = 0;
    var failed = 0;
    var longest = 0L;
    var end = System.nanoTime() + (long) (Double.parseDouble(arguments[1]) * 1e9);
    while (System.nanoTime() < end) {
      var began = System.nanoTime();
      try {
        client.translation().translate(request);
      } catch (StatusRuntimeException error) {
        failed++;
      }
      calls++;
      longest = Math.max(longest, System.nanoTime() - began);
      Thread.sleep(20);
    }
    System.out.println(new Gson().toJson(Map.of("calls", calls, "failed", failed, "longest_s", longest / 1e9)));
    System.exit(0); // the channel is still open
  }
}
