package dragoman.conformance;

import dragoman.client.ClientOptions;
import dragoman.client.TranslationClient;
import dragoman.v1.TranslateDocumentRequest;
import dragoman.v1.TranslateRequest;
import dragoman.v1.TranslateResponse;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;

/** Calls without a timeout: {@code DeadServer TARGET} prints the code of a stream whose server dies after the second request. */
public final class DeadServer {
  private DeadServer() {}

  public static void main(String[] arguments) throws Exception {
    var client = new TranslationClient(arguments[0], ClientOptions.defaults());
    var request = TranslateRequest.newBuilder()
        .addTexts("Hello.").setSourceLanguage("en").setTargetLanguage("de").build();
    client.translation().translate(request);
    client.translation()
        .translateDocument(TranslateDocumentRequest.newBuilder().setText("Hello.").build())
        .forEachRemaining(sentence -> {});
    var answered = new CountDownLatch(1);
    var end = new CompletableFuture<Status>();
    var requests = client.asyncTranslation().translateStream(new StreamObserver<TranslateResponse>() {
      @Override
      public void onNext(TranslateResponse response) {
        answered.countDown();
      }

      @Override
      public void onError(Throwable error) {
        end.complete(Status.fromThrowable(error));
      }

      @Override
      public void onCompleted() {
        end.complete(Status.OK);
      }
    });
    requests.onNext(request);
    answered.await();
    requests.onNext(request);
    System.out.println(end.get().getCode());
    System.exit(0); // the channel is still open
  }
}
