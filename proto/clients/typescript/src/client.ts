// Client of the Dragoman translation server: the generated stubs with deadlines, retries, API keys and TLS.

import {
  InterceptingCall,
  type Interceptor,
  Metadata,
  type ServiceError,
  credentials,
} from "@grpc/grpc-js";
import { BadRequest, type BadRequest_FieldViolation, ErrorInfo, RetryInfo } from "nice-grpc-error-details";
import {
  type DeepPartial,
  ModelServiceClient,
  TranslateRequest,
  type TranslateResponse,
  TranslationServiceClient,
} from "./generated/dragoman/v1/translation.js";
import { Status } from "./generated/google/rpc/status.js";

export * from "./generated/dragoman/v1/translation.js";

/** Options of a TLS connection; the content of PEM files. */
export interface TlsOptions {
  /** Trusted certificate authorities. Default: the roots of Node.js. */
  ca?: Buffer;
  /** Certificate chain of the client for mutual TLS; requires `privateKey`. */
  certificate?: Buffer;
  privateKey?: Buffer;
  /** Name in the certificate of the server. Default: the host of the target. */
  serverName?: string;
}

export interface ClientOptions {
  /** Default deadline of a call in seconds, including retries. Default: 30, and none for documents and streams. */
  timeoutS?: number;
  /** API key of each call. Surrounding white space is removed. */
  apiKey?: string;
  /** Encrypts the connection. Default: no encryption. */
  tls?: TlsOptions;
  /** Allow an API key without `tls` to another machine, because something else encrypts the connection. */
  isPlaintextTrusted?: boolean;
  /** Attempts of a call, including the first, 1 to 5; 1 disables retries. Default: 4. */
  maxAttempts?: number;
}

/** Details of an error in addition to code and message. */
export interface ErrorDetails {
  /** Such as `OVERLOADED`; empty if gRPC or a proxy created the status. */
  reason: string;
  metadata: Record<string, string>;
  fieldViolations: BadRequest_FieldViolation[];
  /** Delay after which the same request may succeed. Absent: unknown. */
  retryAfterS?: number;
}

/** Calls a server. One client per process and target is enough. */
export class TranslationClient {
  /** The generated stubs. Their calls have the deadline, API key and retries of this client. */
  readonly translation: TranslationServiceClient;
  readonly models: ModelServiceClient;

  /** Prepares a connection to `host:port` or another gRPC target. Throws a RangeError for an invalid option. */
  constructor(target: string, options: ClientOptions = {}) {
    const { timeoutS, apiKey, tls, isPlaintextTrusted = false, maxAttempts = 4 } = options;
    if (!(Number.isInteger(maxAttempts) && maxAttempts >= 1 && maxAttempts <= 5)) {
      throw new RangeError(`maxAttempts is ${maxAttempts}, must be 1 to 5`);
    }
    const key = apiKey?.trim();
    if (key !== undefined && !/^[!-~]+$/.test(key)) {
      throw new RangeError("apiKey must be one or more printable ASCII characters without spaces");
    }
    if (key !== undefined && !tls && !isPlaintextTrusted && !isLocal(target)) {
      throw new RangeError(`the connection to ${target} is not encrypted: set tls or isPlaintextTrusted`);
    }
    const channel = tls
      ? credentials.createSsl(tls.ca, tls.privateKey, tls.certificate)
      : credentials.createInsecure();
    const channelOptions = {
      interceptors: [callDefaults(timeoutS === undefined ? undefined : checkedTimeout(timeoutS), key)],
      "grpc.service_config": serviceConfig(maxAttempts),
      "grpc.keepalive_time_ms": 10_000,
      "grpc.keepalive_timeout_ms": 20_000,
      "grpc.max_send_message_length": 4 * 2 ** 20,
      "grpc.max_receive_message_length": 16 * 2 ** 20,
      "grpc.per_rpc_retry_buffer_size": 4 * 2 ** 20,
      ...(tls?.serverName && { "grpc.ssl_target_name_override": tls.serverName }),
      ...(isLocal(target) && { "grpc.enable_http_proxy": 0 }),
    };
    this.translation = new TranslationServiceClient(target, channel, channelOptions);
    this.models = new ModelServiceClient(target, channel, {
      ...channelOptions,
      channelOverride: this.translation.getChannel(),
    });
  }

  /** Translates 1 to 128 texts. Either all of them are translated or the call fails. */
  translate(request: DeepPartial<TranslateRequest>, timeoutS?: number): Promise<TranslateResponse> {
    return new Promise((resolve, reject) => {
      const options = timeoutS === undefined ? {} : { deadline: Date.now() + checkedTimeout(timeoutS) * 1000 };
      const callback = (error: ServiceError | null, response: TranslateResponse) =>
        error ? reject(error) : resolve(response);
      this.translation.translate(TranslateRequest.fromPartial(request), new Metadata(), options, callback);
    });
  }

  close(): void {
    this.translation.close();
  }
}

/** Returns the details of an error of a call; empty for other errors and for details that cannot be parsed. */
export function errorDetails(error: unknown): ErrorDetails {
  const [bytes] = (error as Partial<ServiceError> | undefined)?.metadata?.get("grpc-status-details-bin") ?? [];
  try {
    return statusDetails(bytes instanceof Buffer ? Status.decode(bytes) : undefined);
  } catch {
    return statusDetails();
  }
}

/** Returns the details of a status, such as `TranslateResponse.error`. */
export function statusDetails(status?: Status): ErrorDetails {
  const details: ErrorDetails = { reason: "", metadata: {}, fieldViolations: [] };
  for (const { typeUrl, value } of status?.details ?? []) {
    switch (typeUrl.slice(typeUrl.lastIndexOf("/") + 1)) {
      case "google.rpc.ErrorInfo": {
        const info = ErrorInfo.decode(value);
        if (info.domain === "dragoman") Object.assign(details, { reason: info.reason, metadata: info.metadata });
        break;
      }
      case "google.rpc.BadRequest":
        details.fieldViolations = BadRequest.decode(value).fieldViolations;
        break;
      case "google.rpc.RetryInfo": {
        const delay = RetryInfo.decode(value).retryDelay;
        if (delay) details.retryAfterS = delay.seconds + delay.nanos / 1e9;
      }
    }
  }
  return details;
}

function callDefaults(timeoutS?: number, key?: string): Interceptor {
  return (options, nextCall) => {
    const { requestStream, responseStream } = options.method_definition;
    const defaultS = timeoutS ?? (requestStream || responseStream ? Infinity : 30);
    const deadline = options.deadline ?? (defaultS === Infinity ? Infinity : Date.now() + defaultS * 1000);
    return new InterceptingCall(nextCall({ ...options, deadline }), {
      start(metadata, listener, next) {
        if (key !== undefined) metadata.set("authorization", `Bearer ${key}`);
        next(metadata, listener);
      },
    });
  };
}

function checkedTimeout(timeoutS: number): number {
  if (!(timeoutS > 0 && timeoutS < Infinity)) {
    throw new RangeError(`timeoutS is ${timeoutS}, must be finite and above 0`);
  }
  return timeoutS;
}

/** Retries and load balancing. The retry delay of the server replaces the backoff; a backoff ends with the deadline. */
function serviceConfig(maxAttempts: number): string {
  const retryPolicy = {
    maxAttempts,
    initialBackoff: "0.2s",
    maxBackoff: "5s",
    backoffMultiplier: 2,
    retryableStatusCodes: ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
  };
  const name = ["TranslationService", "ModelService"].map((service) => ({ service: `dragoman.v1.${service}` }));
  return JSON.stringify({
    loadBalancingConfig: [{ round_robin: {} }],
    methodConfig: [{ name, ...(maxAttempts > 1 && { retryPolicy }) }],
    retryThrottling: { maxTokens: 100, tokenRatio: 0.1 },
  });
}

/** Whether a target is certainly on this machine. */
function isLocal(target: string): boolean {
  const address = target.replace(/^dns:(\/\/\/)?/, "");
  return /^unix:/.test(target) || /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$/i.test(address);
}
