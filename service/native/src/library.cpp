// C interface for Python. Functions return 0, or -1 after an error; dragoman_error() returns its message.
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "batch.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using dragoman::Batch;
using dragoman::Kernels;
using dragoman::Model;
using dragoman::Shape;

namespace {

thread_local std::string last_error;

template <class Call>
int guarded(const Call& call) {
  try {
    call();
    return 0;
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "unknown error";
  }
  return -1;
}

// Names of all instruction sets, the widest first, and the kernels of a set that this CPU has.
#ifdef __x86_64__
constexpr const char* kInstructionSets[] = {"avx512", "avxvnni", "avx512bw", "avx2"};

const Kernels* usable(const std::string& name) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
  if (name == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
    return dragoman::avx512_kernels();
  if (name == "avx512bw" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return dragoman::avx512bw_kernels();
  if (name == "avxvnni" && __builtin_cpu_supports("avxvnni")) return dragoman::avxvnni_kernels();
  if (name == "avx2") return dragoman::avx2_kernels();
  return nullptr;
}
#else
constexpr const char* kInstructionSets[] = {"i8mm", "dotprod", "neon"};

const Kernels* usable(const std::string& name) {
  constexpr unsigned long kHasDotProducts = 1 << 20, kHasByteMatrices = 1 << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  const bool has_dot_products = getauxval(AT_HWCAP) & kHasDotProducts;
  if (name == "i8mm" && has_dot_products && getauxval(AT_HWCAP2) & kHasByteMatrices) return dragoman::i8mm_kernels();
  if (name == "dotprod" && has_dot_products) return dragoman::dotprod_kernels();
  if (name == "neon") return dragoman::neon_kernels();
  return nullptr;
}
#endif

// Returns the shortest time of a product of 4 rows, 256 inputs and 256 outputs.
std::chrono::steady_clock::duration product_time(const Kernels& kernels) {
  constexpr int kRows = 4, kSize = 256, kRepetitions = 10;
  std::vector<int8_t> matrix(kSize * kSize);
  for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = int8_t(int(i * 37 % 121) - 60);
  const std::vector<float> factors(kSize, 1.0f);
  dragoman::PackedWeights weights;
  weights.pack(matrix.data(), kSize, 1, factors.data(), nullptr, kSize, kSize, 1.0f, 64, 255, kernels.center);
  const auto bytes = dragoman::allocated<uint8_t>(kRows * kSize);
  for (int i = 0; i < kRows * kSize; ++i) bytes[size_t(i)] = uint8_t(i % 128);
  const auto sums = dragoman::allocated<float>(kRows * kSize);
  const dragoman::Product product = {{bytes.get(), kSize, nullptr}, kRows, &weights.view(), 0, kSize / dragoman::kPanel,
                                     dragoman::Output::kStore, sums.get(), kSize, {}, nullptr};
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.multiply(product);
    shortest = std::min(shortest, std::chrono::steady_clock::now() - start);
  }
  return shortest;
}

}  // namespace

// ABI version. Increase it with each incompatible change of the functions.
EXPORTED int dragoman_abi() { return 8; }

EXPORTED const char* dragoman_error() { return last_error.c_str(); }

// Instruction sets that this CPU has, separated by spaces. The first is the one with the fastest product, measured in
// less than 2 ms; it replaces the one with the widest vectors only if it is 10 % faster, because times vary.
EXPORTED const char* dragoman_instruction_sets() {
  static const std::string names = [] {
    std::vector<const Kernels*> found;
    for (const char* name : kInstructionSets)
      if (const Kernels* kernels = usable(name)) found.push_back(kernels);
    std::vector<std::chrono::steady_clock::duration> times;
    for (const Kernels* kernels : found) times.push_back(product_time(*kernels));
    const auto fastest = std::min_element(times.begin(), times.end()) - times.begin();
    if (fastest > 0 && times[size_t(fastest)] * 10 < times[0] * 9)
      std::rotate(found.begin(), found.begin() + fastest, found.begin() + fastest + 1);
    std::string joined;
    for (const Kernels* kernels : found) joined += (joined.empty() ? "" : " ") + std::string(kernels->name);
    return joined;
  }();
  return names.c_str();
}

// Handles are shared pointers, so that batches keep their model alive.
using Handle = std::shared_ptr<Model>;

EXPORTED Handle* dragoman_model_new(const Shape* shape, const char* instruction_set) {
  Handle* handle = nullptr;
  guarded([&] {
    const Kernels* kernels = usable(instruction_set);
    dragoman::require(kernels, "this CPU does not have the instruction set");
    handle = new Handle(std::make_shared<Model>(*shape, *kernels));
  });
  return handle;
}
EXPORTED void dragoman_model_free(Handle* model) { delete model; }

EXPORTED int dragoman_model_set_embedding(Handle* model, int stack, const int8_t* table, const float* factors) {
  return guarded([&] { (*model)->set_embedding(stack, table, factors); });
}
EXPORTED int dragoman_model_set_positions(Handle* model, int stack, const float* table) {
  return guarded([&] { (*model)->set_positions(stack, table); });
}
EXPORTED int dragoman_model_set_product(Handle* model, int stack, int layer, int kind, const int8_t* w,
                                        const float* factors, const float* bias, float scale, int zero_point,
                                        int levels) {
  return guarded([&] { (*model)->set_product(stack, layer, kind, w, factors, bias, scale, zero_point, levels); });
}
EXPORTED int dragoman_model_set_norm(Handle* model, int stack, int layer, int kind, const float* scale,
                                     const float* bias) {
  return guarded([&] { (*model)->set_norm(stack, layer, kind, scale, bias); });
}

// Writes the `cross` argument of `dragoman_batch_add` for each source; token ids of the sources are concatenated.
EXPORTED int dragoman_encode(Handle* model, int num_sources, const int32_t* lengths, const int64_t* token_ids,
                             float* const* cross, int num_threads) {
  return guarded([&] {
    (*model)->check_complete();
    dragoman::encode(**model, num_sources, lengths, token_ids, cross, num_threads);
  });
}

EXPORTED Batch* dragoman_batch_new(Handle* model) {
  Batch* batch = nullptr;
  guarded([&] {
    (*model)->check_complete();
    batch = new Batch(*model);
  });
  return batch;
}
EXPORTED void dragoman_batch_free(Batch* batch) { delete batch; }
EXPORTED int64_t dragoman_batch_bytes(const Batch* batch) { return batch->num_bytes(); }

EXPORTED int dragoman_batch_add(Batch* batch, int source_length, const float* cross, int64_t cross_size,
                                int is_from_graph, const int32_t* shortlist, int shortlist_size) {
  return guarded([&] { batch->add(source_length, cross, cross_size, is_from_graph, shortlist, shortlist_size); });
}
EXPORTED int dragoman_batch_keep(Batch* batch, const int64_t* indices, int count) {
  return guarded([&] { batch->keep(indices, count); });
}
EXPORTED int dragoman_batch_cross(const Batch* batch, int segment, float* cross) {
  return guarded([&] { batch->copy_cross(segment, cross); });
}
EXPORTED int dragoman_batch_step(Batch* batch, int num_rows, const int64_t* token_ids, const int64_t* parents,
                                 const int32_t* wanted, int num_candidates, int num_threads, float* log_probs,
                                 int64_t* candidate_ids) {
  return guarded([&] {
    batch->step(num_rows, token_ids, parents, wanted, num_candidates, num_threads, log_probs, candidate_ids);
  });
}
EXPORTED int dragoman_batch_search(Batch* batch, dragoman::SearchStep* step) {
  return guarded([&] { batch->search(*step); });
}
