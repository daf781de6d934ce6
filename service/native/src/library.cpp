// C interface for Python. Functions return 0, or -1 after an error; dragoman_error() returns its message.
#include <exception>
#include <string>

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

const Kernels* usable(const std::string& name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
  if (name == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
    return dragoman::avx512_kernels();
  if (name == "avxvnni" && __builtin_cpu_supports("avxvnni")) return dragoman::avxvnni_kernels();
  if (name == "avx2") return dragoman::avx2_kernels();
#endif
  return nullptr;
}

}  // namespace

// ABI version. Increase it with each incompatible change of the functions.
EXPORTED int dragoman_abi() { return 7; }

EXPORTED const char* dragoman_error() { return last_error.c_str(); }

// Instruction sets that this CPU has, best first, separated by spaces.
EXPORTED const char* dragoman_instruction_sets() {
  static const std::string names = [] {
    std::string found;
    for (const char* name : {"avx512", "avxvnni", "avx2"})
      if (usable(name)) found += found.empty() ? name : std::string(" ") + name;
    return found;
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
                                        const float* factors, const float* bias, float scale, int zero_point) {
  return guarded([&] { (*model)->set_product(stack, layer, kind, w, factors, bias, scale, zero_point); });
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

EXPORTED int dragoman_batch_add(Batch* batch, int source_length, const float* cross, int is_from_graph,
                                const int32_t* shortlist, int shortlist_size) {
  return guarded([&] { batch->add(source_length, cross, is_from_graph, shortlist, shortlist_size); });
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
