// Faults inside the processes of a server, which has no hook for them. The scenario preloads this library and also
// names it as the native engine, which it wraps. All processes map the file CHAOS_CONTROL, which the scenario changes.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

enum Kind : int32_t { kFailBefore, kFailAfter, kHang };

struct Run {                        // of the encoder or a decoding step
  std::atomic<int32_t> num_faults;  // runs that fail or hang
  int32_t kind;
  double seconds;  // of a hang
};

struct Control {                         // as in fault.py
  std::atomic<int64_t> clock_offset_ns;  // of the wall clock
  std::atomic<int64_t> shown_ns;         // the wall clock that a process read last
  Run encoder, step;
  char log_path[128];  // where standard error goes; empty: to its own file
};

Control* control = nullptr;

__attribute__((constructor)) void map_control() {
  const char* path = getenv("CHAOS_CONTROL");
  const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* mapped = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) control = static_cast<Control*>(mapped);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <typename... Arguments>
int run(Run& run, const char* name, Arguments... arguments) {
  int32_t left = run.num_faults;
  while (left > 0 && !run.num_faults.compare_exchange_weak(left, left - 1)) {
  }
  const bool is_hit = left > 0;
  if (is_hit && run.kind == kFailBefore) return -1;
  if (is_hit && run.kind == kHang) usleep(static_cast<useconds_t>(run.seconds * 1e6));
  const int status = next<int (*)(Arguments...)>(name)(arguments...);
  return is_hit && run.kind == kFailAfter ? -1 : status;
}

}  // namespace

extern "C" {

// The native engine

int dragoman_encode(void* model, int num_sources, const int32_t* lengths, const int64_t* token_ids, float* const* cross,
                    int num_threads) {
  return run(control->encoder, __func__, model, num_sources, lengths, token_ids, cross, num_threads);
}

int dragoman_batch_step(void* batch, int num_rows, const int64_t* token_ids, const int64_t* parents,
                        const int32_t* wanted, int num_candidates, int num_threads, float* log_probs,
                        int64_t* candidate_ids) {
  return run(control->step, __func__, batch, num_rows, token_ids, parents, wanted, num_candidates, num_threads,
             log_probs, candidate_ids);
}

int dragoman_batch_search(void* batch, void* search) { return run(control->step, __func__, batch, search); }

// The wall clock; gRPC reads it by `syscall`

int clock_gettime(clockid_t clock, timespec* now) {
  static const auto kernel = next<long (*)(long, ...)>("syscall");
  const int status = static_cast<int>(kernel(SYS_clock_gettime, clock, now));
  if (status == 0 && control != nullptr && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    const int64_t now_ns = now->tv_sec * 1'000'000'000LL + now->tv_nsec + control->clock_offset_ns;
    *now = {now_ns / 1'000'000'000, now_ns % 1'000'000'000};
    control->shown_ns = now_ns;
  }
  return status;
}

long syscall(long number, ...) {
  va_list given;
  va_start(given, number);
  long values[6];
  for (long& value : values) value = va_arg(given, long);
  va_end(given);
  if (number == SYS_clock_gettime) {
    return clock_gettime(static_cast<clockid_t>(values[0]), reinterpret_cast<timespec*>(values[1]));
  }
  static const auto kernel = next<long (*)(long, ...)>("syscall");
  return kernel(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

// Standard error; the log polls it before each write

int poll(pollfd* files, nfds_t count, int timeout_ms) {
  static int own = -1;
  if (control != nullptr && count == 1 && files->fd == STDERR_FILENO) {
    if (control->log_path[0] != '\0' && own < 0) {
      own = dup(STDERR_FILENO);
      const int other = open(control->log_path, O_WRONLY);
      dup2(other, STDERR_FILENO);
      close(other);
    } else if (control->log_path[0] == '\0' && own >= 0) {
      dup2(own, STDERR_FILENO);
      close(own);
      own = -1;
    }
  }
  static const auto next_poll = next<int (*)(pollfd*, nfds_t, int)>("poll");
  return next_poll(files, count, timeout_ms);
}
}
