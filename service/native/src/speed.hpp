// Measured speed of products: for the choice of the instruction set, for `Crew`, and for benchmarks.
#pragma once
#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "model.hpp"

namespace dragoman {

template <class Call>
double shortest_ns(int num_repetitions, const Call& call) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < num_repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    shortest = std::min(shortest, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
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
  for (int i = 0; i < kRows * kInputs; ++i) bytes[size_t(i)] = uint8_t(i % 128);
  const auto sums = allocated<float>(kRows * kPanel);
  const Product product = {{bytes.get(), kInputs, nullptr}, kRows, &weights.view(), 0, 1, Output::kStore,
                           sums.get(), kPanel, {}, nullptr};
  const double ns = shortest_ns(num_repetitions, [&] {
    for (int i = 0; i < kCalls; ++i) kernels.multiply(product);
  });
  return double(kCalls) * kRows * kInputs * kPanel / ns;
}

// Shortest time in nanoseconds of all products of a decoder step in one thread.
inline double step_products_ns(const Model& model, int num_rows) {
  require(num_rows >= 1 && num_rows <= 1024, "the number of rows is not between 1 and 1,024");
  std::vector<const Weights*> products = {&model.projection.view()};
  for (const Layer& layer : model.layers)
    for (const PackedWeights& product : layer.products) products.push_back(&product.view());
  int inputs = 0, outputs = 0;
  for (const Weights* w : products) inputs = std::max(inputs, w->inputs), outputs = std::max(outputs, w->outputs);
  const int64_t stride = rounded_up(inputs, kPanel), out_stride = rounded_up(outputs, kPanel);
  const auto bytes = allocated<uint8_t>(size_t(num_rows * stride));
  for (int64_t i = 0; i < num_rows * stride; ++i) bytes[size_t(i)] = uint8_t(i % 128);
  const auto out = allocated<float>(size_t(num_rows * out_stride)), scales = allocated<float>(size_t(num_rows));
  std::fill_n(scales.get(), num_rows, 1.0f);
  return shortest_ns(20, [&] {
    for (const Weights* w : products)
      model.kernels.multiply({{bytes.get(), stride, scales.get()}, num_rows, w, 0, w->panels(), Output::kStore,
                              out.get(), out_stride, {}, nullptr});
  });
}

}  // namespace dragoman
