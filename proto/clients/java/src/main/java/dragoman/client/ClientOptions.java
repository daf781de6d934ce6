package dragoman.client;

import java.time.Duration;

/**
 * Options of a client: {@code ClientOptions.defaults().withApiKey(key)}.
 *
 * @param timeout default deadline of a call, including retries; null: 30 s, and none for documents and streams
 * @param apiKey API key of each call, without surrounding white space; null: none
 * @param tls encrypts the connection; null: no encryption
 * @param isPlaintextTrusted allow an API key without TLS to another machine
 * @param maxAttempts attempts of a call, including the first, 1 to 5; 1 disables retries
 */
public record ClientOptions(
    Duration timeout, String apiKey, TlsOptions tls, boolean isPlaintextTrusted, int maxAttempts) {

  /**
   * Options of a TLS connection; the content of PEM files, or null.
   *
   * @param ca trusted certificate authorities; null: those of the JDK
   * @param certificate certificate chain of the client for mutual TLS; requires the private key
   * @param privateKey private key of the certificate
   * @param serverName name in the certificate of the server; null: the host of the target
   */
  public record TlsOptions(byte[] ca, byte[] certificate, byte[] privateKey, String serverName) {
    public TlsOptions {
      if ((certificate == null) != (privateKey == null)) {
        throw new IllegalArgumentException("certificate and privateKey must be given together");
      }
    }
  }

  /** Checks the ranges. */
  public ClientOptions {
    if (timeout != null && (timeout.isNegative() || timeout.isZero())) {
      throw new IllegalArgumentException("timeout is " + timeout + ", must be above 0");
    }
    if (maxAttempts < 1 || maxAttempts > 5) {
      throw new IllegalArgumentException("maxAttempts is " + maxAttempts + ", must be 1 to 5");
    }
    apiKey = apiKey == null ? null : apiKey.strip();
    if (apiKey != null && !apiKey.matches("[!-~]+")) {
      throw new IllegalArgumentException("apiKey must be printable ASCII characters without spaces");
    }
  }

  /** Returns 30 s, 4 attempts, no key and no encryption. */
  public static ClientOptions defaults() {
    return new ClientOptions(null, null, null, false, 4);
  }

  public ClientOptions withTimeout(Duration value) {
    return new ClientOptions(value, apiKey, tls, isPlaintextTrusted, maxAttempts);
  }

  public ClientOptions withApiKey(String value) {
    return new ClientOptions(timeout, value, tls, isPlaintextTrusted, maxAttempts);
  }

  public ClientOptions withTls(TlsOptions value) {
    return new ClientOptions(timeout, apiKey, value, isPlaintextTrusted, maxAttempts);
  }

  public ClientOptions withPlaintextTrusted(boolean value) {
    return new ClientOptions(timeout, apiKey, tls, value, maxAttempts);
  }

  public ClientOptions withMaxAttempts(int value) {
    return new ClientOptions(timeout, apiKey, tls, isPlaintextTrusted, value);
  }

  @Override
  public String toString() {
    return "ClientOptions[timeout=" + timeout + ", maxAttempts=" + maxAttempts + "]"; // without credentials
  }
}
