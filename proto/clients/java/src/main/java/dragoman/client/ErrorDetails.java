package dragoman.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import com.google.rpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Details of an error in addition to code and message.
 *
 * @param reason such as {@code OVERLOADED}; empty if gRPC or a proxy created the status
 * @param metadata further information about the reason
 * @param fieldViolations the fields to change
 * @param retryAfter delay after which the same request may succeed; empty: unknown
 */
public record ErrorDetails(
    String reason,
    Map<String, String> metadata,
    List<BadRequest.FieldViolation> fieldViolations,
    Optional<Duration> retryAfter) {

  /** Returns the details of an error of a call; empty for other errors and for details that cannot be parsed. */
  public static ErrorDetails of(Throwable error) {
    Status status = StatusProto.fromThrowable(error);
    return of(status == null ? Status.getDefaultInstance() : status);
  }

  /** Returns the details of a status, such as {@code TranslateResponse.getError()}. */
  public static ErrorDetails of(Status status) {
    ErrorInfo info = ErrorInfo.getDefaultInstance();
    BadRequest request = BadRequest.getDefaultInstance();
    Optional<Duration> retryAfter = Optional.empty();
    try {
      for (Any detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals("dragoman")) {
          info = detail.unpack(ErrorInfo.class);
        } else if (detail.is(BadRequest.class)) {
          request = detail.unpack(BadRequest.class);
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfter = Optional.of(Duration.ofSeconds(delay.getSeconds(), delay.getNanos()));
        }
      }
    } catch (InvalidProtocolBufferException error) {
      return of(Status.getDefaultInstance());
    }
    return new ErrorDetails(
        info.getReason(), info.getMetadataMap(), request.getFieldViolationsList(), retryAfter);
  }
}
