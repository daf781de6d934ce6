// Package example has an HTTP handler that translates English text into German: POST / with the text as body.
package example

import (
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dragoman"
	pb "dragoman/v1"
)

const maxBytes = 40_000

var httpStatus = map[codes.Code]int{
	codes.InvalidArgument:   http.StatusBadRequest,
	codes.ResourceExhausted: http.StatusServiceUnavailable,
	codes.Unavailable:       http.StatusServiceUnavailable,
	codes.DeadlineExceeded:  http.StatusGatewayTimeout,
}

// Handler returns the handler.
func Handler(client *dragoman.Client) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, maxBytes))
		if err != nil {
			http.Error(writer, "text is too long", http.StatusRequestEntityTooLarge)
			return
		}
		ctx, cancel := context.WithTimeout(request.Context(), 5*time.Second)
		defer cancel()
		response, err := client.Translation.Translate(ctx,
			&pb.TranslateRequest{Texts: []string{string(text)}, SourceLanguage: "en", TargetLanguage: "de"})
		if err == nil {
			_, _ = io.WriteString(writer, response.Translations[0].Hypotheses[0].Text)
			return
		}
		if delay := dragoman.Details(err).RetryAfter; delay > 0 {
			writer.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
		}
		code, isKnown := httpStatus[status.Code(err)]
		if !isKnown {
			code = http.StatusInternalServerError
		}
		http.Error(writer, "translation failed", code)
	}
}
