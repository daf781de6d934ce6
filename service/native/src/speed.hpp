// Measured speed of products: for the choice of the instruction set, for `ThreadGroup`, and for benchmarks.
#pragma once
#include <time.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "model.hpp"

namespace dragoman {

inline double thread_ns() {  // CPU time, because other processes can interrupt a call
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) * 1e9 + double(time.tv_nsec);
}

template <class Call>
double shortest_ns(int num_repetitions, const Call& call) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < num_repetitions; ++i) {
    const double start = thread_ns();
    call();
    shortest = std::min(shortest, thread_ns() - start);
  }
  return shortest;
}

// Multiply-accumulate operations per nanosecond of a product in the L1 cache: 12 rows, 256 inputs and 64 outputs, with
// activations of 7 bits and weights as the exporter writes them.
inline double macs_per_ns(const Kernels& kernels, int num_repetitions) {
  constexpr int kRows = 12, kInputs = 256, kCalls = 8;
  std::vector<int8_t> matrix(kInputs * kPanel);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = int8_t(int(i * 37 % 121) - 60);
  const std::vector<float> factors(kPanel, 1.0f);
  PackedWeights weights;
  weights.pack(matrix.data(), kPanel, 1, factors.data(), nullptr, kInputs, kPanel, 1.0f, 64, 127, kernels.center);
  const auto bytes = allocated<uint8_t>(kRows * kInputs);
  for (int i = 0; i < kRows * kInputs; ++i) bytes[i] = uint8_t(i % 128);
  const auto sums = allocated<float>(kRows * kPanel);
  const Product product = {
      .a = {bytes.get(), kInputs, nullptr},
      .rows = kRows,
      .weights = &weights.view(),
      .last_panel = 1,
      .out = sums.get(),
      .out_stride = kPanel,
  };
  const double ns = shortest_ns(num_repetitions, [&] {
    for (int i = 0; i < kCalls; ++i) kernels.multiply(product);
  });
  return double(kCalls) * kRows * kInputs * kPanel / ns;
}

// Shortest time in nanoseconds of all products of a decoder step in one thread, with the softmax of the projection.
inline double step_products_ns(const Model& model, int num_rows) {
  require(num_rows >= 1 && num_rows <= 1024, "the number of rows is not between 1 and 1,024");
  const Weights& projection = model.projection.view();
  std::vector<const Weights*> products;
  for (const Layer& layer : model.layers)
    for (const PackedWeights& product : layer.products)
      if (product.is_set()) products.push_back(&product.view());
  int inputs = model.d, outputs = 0;
  for (const Weights* w : products) {
    inputs = std::max(inputs, w->inputs);
    outputs = std::max(outputs, w->outputs);
  }
  const size_t bytes_size = size_t(num_rows * rounded_up(inputs, kPanel));
  const auto bytes = allocated<uint8_t>(bytes_size);
  for (size_t i = 0; i < bytes_size; ++i) bytes[i] = uint8_t(i % 128);
  const auto out = allocated<float>(size_t(num_rows * rounded_up(outputs, kPanel)));
  const auto scales = allocated<float>(size_t(num_rows)), sums = allocated<float>(size_t(num_rows) * kRowSums);
  std::fill_n(scales.get(), num_rows, 1.0f);
  std::vector<Candidate> found(static_cast<size_t>(num_rows));
  std::vector<Best> best(static_cast<size_t>(num_rows));
  const auto rounded = [&](const Weights& w) {
    return Rounded{bytes.get(), rounded_up(w.inputs, kPanel), scales.get()};
  };
  return shortest_ns(20, [&] {
    for (const Weights* w : products)
      model.kernels.multiply({
          .a = rounded(*w),
          .rows = num_rows,
          .weights = w,
          .last_panel = w->panels(),
          .out = out.get(),
          .out_stride = rounded_up(w->outputs, kPanel),
      });
    for (size_t r = 0; r < best.size(); ++r)
      best[r] = {&found[r], 0, 1, -std::numeric_limits<float>::infinity(), nullptr};
    for (int chunk = 0; chunk < projection.chunks(); ++chunk)
      model.kernels.project({
          .a = rounded(projection),
          .rows = num_rows,
          .weights = &projection,
          .chunk = chunk,
          .best = best.data(),
          .sums = sums.get(),
      });
  });
}

}  // namespace dragoman
