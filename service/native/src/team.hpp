// Thread pool for the tasks of one decoder step, phase by phase.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace dragoman {

// Only one caller can run phases. A phase ends with its last task. Threads take tasks one by one, so that a thread that
// is not scheduled delays only its own task. Between phases, workers spin for some tens of microseconds and then sleep.
class Team {
 public:
  static constexpr int kMaxTasks = (1 << 20) - 1;

  // Starts fewer workers if the system cannot create more threads.
  explicit Team(int num_workers) {
    workers_.reserve(size_t(num_workers));
    try {
      for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::exception&) {
    }
  }
  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  Team(const Team&) = delete;

  // Calls task(0) to task(count - 1), on all threads, with at most kMaxTasks tasks. If tasks throw, all others still
  // run, and the first exception is thrown again.
  template <class Task>
  void run(int count, const Task& task) {
    call_ = [](const void* context, int index) { (*static_cast<const Task*>(context))(index); };
    context_ = &task;
    pending_.store(count, std::memory_order_relaxed);
    phase_ = (phase_ + 1) & 0xffffff;
    ticket_.store(phase_ << 40 | uint64_t(count) << 20);
    if (num_sleeping_.load() > 0) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
      }
      wake_.notify_all();
    }
    while (take()) {
    }
    Spin spin;
    while (pending_.load(std::memory_order_acquire) > 0)
      if (!spin.pause()) sched_yield();  // lets a worker with a task run on this core
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  // Waits for a short time without giving up the core.
  class Spin {
   public:
    // Pauses; returns false once 50 us have passed since the first call. A pause takes 2 to 50 ns, depending on the
    // CPU.
    bool pause() {
      for (int i = 0; i < 4; ++i) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#else
        asm volatile("isb");  // YIELD does nothing on most CPUs
#endif
      }
      const auto now = std::chrono::steady_clock::now();
      if (!has_begun_) {
        has_begun_ = true;
        end_ = now + std::chrono::microseconds(50);
      }
      return now < end_;
    }

   private:
    bool has_begun_ = false;
    std::chrono::steady_clock::time_point end_;
  };

  static bool has_task(uint64_t ticket) { return (ticket & 0xfffff) < (ticket >> 20 & 0xfffff); }

  bool take() {
    if (!has_task(ticket_.load(std::memory_order_acquire))) return false;
    const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_task(ticket)) return false;
    try {
      call_(context_, int(ticket & 0xfffff));
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    pending_.fetch_sub(1, std::memory_order_release);
    return true;
  }

  void work() {
    for (Spin spin;;) {
      if (take()) {
        spin = Spin();
      } else if (!spin.pause()) {
        std::unique_lock<std::mutex> lock(mutex_);
        num_sleeping_.fetch_add(1);
        wake_.wait(lock, [this] { return is_over_ || has_task(ticket_.load()); });
        num_sleeping_.fetch_sub(1);
        if (is_over_) return;
        spin = Spin();
      }
    }
  }

  void (*call_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  uint64_t phase_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // 24 bits of phase, 20 of number of tasks, 20 of the next task
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> num_sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::exception_ptr failure_;  // of the current phase
  std::vector<std::thread> workers_;
};

}  // namespace dragoman
