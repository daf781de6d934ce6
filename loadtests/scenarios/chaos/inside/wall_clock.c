/* Shifts the wall clock of one process: preloaded, it adds an offset in nanoseconds from a memory-mapped file, which
   the parent process may change at any time. gRPC reads the clock by `syscall`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ns;

__attribute__((constructor)) static void find_offset(void) {
  const char *path = getenv("CHAOS_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) offset_ns = mapped;
}

static int64_t ask(clockid_t clock, int *failed) {
  static long (*kernel)(long, ...);
  if (!kernel) kernel = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  struct timespec now = {0, 0};
  *failed = (int)kernel(SYS_clock_gettime, clock, &now);
  int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  return now.tv_sec * 1000000000LL + now.tv_nsec + (is_wall && offset_ns ? *offset_ns : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed;
  int64_t now_ns = ask(clock, &failed);
  if (!failed) *now = (struct timespec){now_ns / 1000000000LL, now_ns % 1000000000LL};
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  int failed;
  int64_t now_ns = ask(CLOCK_REALTIME, &failed);
  *now = (struct timeval){now_ns / 1000000000LL, now_ns % 1000000000LL / 1000};
  return failed;
}

time_t time(time_t *now) {
  int failed;
  time_t now_s = ask(CLOCK_REALTIME, &failed) / 1000000000LL;
  if (now) *now = now_s;
  return now_s;
}

long syscall(long number, ...) {
  va_list given;
  va_start(given, number);
  long values[6];
  for (int index = 0; index < 6; index++) values[index] = va_arg(given, long);
  va_end(given);
  if (number == SYS_clock_gettime) return clock_gettime((clockid_t)values[0], (struct timespec *)values[1]);
  static long (*kernel)(long, ...);
  if (!kernel) kernel = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return kernel(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
