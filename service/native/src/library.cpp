// C interface for Python. Functions return 0, or -1 after an error; dragoman_error() returns its message. No exception
// leaves a function.
#ifdef __aarch64__
#include <sys/auxv.h>
#else
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch.hpp"
#include "layout.hpp"
#include "speed.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using dragoman::Batch;
using dragoman::Kernels;
using dragoman::Model;
using dragoman::Shape;

namespace {

thread_local char last_error[256];  // of a fixed size, because after an error there may be no memory

template <class Call>
int guarded(const Call& call) noexcept {
  const auto fail = [](const char* message) {
    std::snprintf(last_error, sizeof(last_error), "%s", message);
    return -1;
  };
  try {
    call();
    return 0;
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::length_error&) {  // of a vector
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  } catch (...) {
    return fail("unknown error");
  }
}

// Names of all instruction sets, the widest first, and the kernels of a set that this CPU has.
#ifdef __x86_64__
constexpr const char* kInstructionSets[] = {"amx", "avx512", "avxvnni", "avx512bw", "avx2"};

// Whether the CPU has tiles of bytes, and the system lets this process use them.
bool may_use_tiles(bool has_avx512) {
#ifdef EMULATED_TILES
  (void)has_avx512;
  return true;
#else
  constexpr unsigned kTiles = 1u << 24, kTilesOfBytes = 1u << 25;  // of leaf 7, EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;      // ARCH_REQ_XCOMP_PERM, the state component
  unsigned eax, ebx, ecx, edx;
  return has_avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx & kTiles && edx & kTilesOfBytes &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}

const Kernels* usable(const std::string& name) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return nullptr;
  const bool has_avx512bw = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool has_avx512 = has_avx512bw && __builtin_cpu_supports("avx512vnni");
  if (name == "amx" && may_use_tiles(has_avx512)) return dragoman::amx_kernels();
  if (name == "avx512" && has_avx512) return dragoman::avx512_kernels();
  if (name == "avx512bw" && has_avx512bw) return dragoman::avx512bw_kernels();
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

struct InstructionSet {
  const Kernels* kernels;
  double macs_per_ns;
};

// Returns the instruction sets that this CPU has. The first is the one with the fastest product, measured in less than
// 1 ms; it replaces the one with the widest vectors only if it is 10 % faster, because times vary.
const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> found;
    for (const char* name : kInstructionSets)
      if (const Kernels* kernels = usable(name)) found.push_back({kernels, dragoman::macs_per_ns(*kernels, 10)});
    const auto fastest = std::max_element(found.begin(), found.end(),
                                          [](const auto& a, const auto& b) { return a.macs_per_ns < b.macs_per_ns; });
    if (fastest != found.end() && fastest->macs_per_ns * 9 > found[0].macs_per_ns * 10)
      std::rotate(found.begin(), fastest, fastest + 1);
    return found;
  }();
  return sets;
}

const InstructionSet& instruction_set(const char* name) {
  for (const InstructionSet& set : instruction_sets())
    if (std::string(set.kernels->name) == name) return set;
  throw std::invalid_argument("this CPU does not have the instruction set");
}

}  // namespace

// ABI version. Increase it with each incompatible change of the functions.
EXPORTED int dragoman_abi() noexcept { return 12; }

// Sizes and offsets of the structures, in lines of text; null after an error.
EXPORTED const char* dragoman_layout() noexcept {
  const char* lines = nullptr;
  guarded([&] {
    static const std::string text = dragoman::layout();
    lines = text.c_str();
  });
  return lines;
}

EXPORTED const char* dragoman_error() noexcept { return last_error; }

// Instruction sets that this CPU has, separated by spaces, the fastest first; null after an error.
EXPORTED const char* dragoman_instruction_sets() noexcept {
  const char* names = nullptr;
  guarded([&] {
    static const std::string joined = [] {
      std::string text;
      for (const InstructionSet& set : instruction_sets())
        text += (text.empty() ? "" : " ") + std::string(set.kernels->name);
      return text;
    }();
    names = joined.c_str();
  });
  return names;
}

// Handles are shared pointers, so that batches keep their model alive.
using Handle = std::shared_ptr<Model>;

EXPORTED Handle* dragoman_model_new(const Shape* shape, const char* name) noexcept {
  Handle* handle = nullptr;
  guarded([&] {
    const InstructionSet& set = instruction_set(name);
    handle = new Handle(std::make_shared<Model>(*shape, *set.kernels, set.macs_per_ns));
  });
  return handle;
}
EXPORTED void dragoman_model_free(Handle* model) noexcept { delete model; }

// Bytes of the scratch memory that encoder runs reuse.
EXPORTED int64_t dragoman_model_scratch_bytes(const Handle* model) noexcept { return (*model)->scratch_bytes(); }

EXPORTED int dragoman_model_set_embedding(Handle* model, int stack, const int8_t* table,
                                          const float* factors) noexcept {
  return guarded([&] { (*model)->set_embedding(stack, table, factors); });
}
EXPORTED int dragoman_model_set_positions(Handle* model, int stack, const float* table) noexcept {
  return guarded([&] { (*model)->set_positions(stack, table); });
}
EXPORTED int dragoman_model_set_product(Handle* model, int stack, int layer, int kind, const int8_t* w,
                                        const float* factors, const float* bias, float scale, int zero_point,
                                        int levels) noexcept {
  return guarded([&] { (*model)->set_product(stack, layer, kind, w, factors, bias, scale, zero_point, levels); });
}
EXPORTED int dragoman_model_set_norm(Handle* model, int stack, int layer, int kind, const float* scale,
                                     const float* bias) noexcept {
  return guarded([&] { (*model)->set_norm(stack, layer, kind, scale, bias); });
}

// Writes the `cross` argument of `dragoman_batch_add` for each source; token ids of the sources are concatenated.
EXPORTED int dragoman_encode(Handle* model, int num_sources, const int32_t* lengths, const int64_t* token_ids,
                             float* const* cross, int num_threads) noexcept {
  return guarded([&] {
    (*model)->check_complete();
    dragoman::encode(**model, num_sources, lengths, token_ids, cross, num_threads);
  });
}

EXPORTED Batch* dragoman_batch_new(Handle* model) noexcept {
  Batch* batch = nullptr;
  guarded([&] {
    (*model)->check_complete();
    batch = new Batch(*model);
  });
  return batch;
}
EXPORTED void dragoman_batch_free(Batch* batch) noexcept { delete batch; }
EXPORTED int64_t dragoman_batch_bytes(const Batch* batch) noexcept { return batch->num_bytes(); }

EXPORTED int dragoman_batch_add(Batch* batch, int source_length, const float* cross, int64_t cross_size,
                                int is_from_graph, const int32_t* shortlist, int shortlist_size) noexcept {
  return guarded([&] { batch->add(source_length, cross, cross_size, is_from_graph, shortlist, shortlist_size); });
}
EXPORTED int dragoman_batch_keep(Batch* batch, const int64_t* indices, int count) noexcept {
  return guarded([&] { batch->keep(indices, count); });
}
EXPORTED int dragoman_batch_cross(const Batch* batch, int segment, float* cross) noexcept {
  return guarded([&] { batch->copy_cross(segment, cross); });
}
EXPORTED int dragoman_batch_step(Batch* batch, int num_rows, const int64_t* token_ids, const int64_t* parents,
                                 const int32_t* wanted, int num_candidates, int num_threads, float* log_probs,
                                 int64_t* candidate_ids) noexcept {
  return guarded([&] {
    batch->step({num_rows, token_ids, parents, wanted, num_candidates, num_threads, log_probs, candidate_ids});
  });
}
EXPORTED int dragoman_batch_search(Batch* batch, dragoman::SearchRun* run) noexcept {
  return guarded([&] { batch->search(*run); });
}

// For benchmarks. Multiply-accumulate operations per nanosecond of products in the L1 cache, in one thread; negative
// after an error.
EXPORTED double dragoman_peak_macs_per_ns(const char* name) noexcept {
  double speed = -1;
  guarded([&] { speed = dragoman::macs_per_ns(*instruction_set(name).kernels, 1000); });
  return speed;
}

// For benchmarks. Nanoseconds of all products of a decoder step, in one thread; negative after an error.
EXPORTED double dragoman_model_products_ns(const Handle* model, int num_rows) noexcept {
  double ns = -1;
  guarded([&] {
    (*model)->check_complete();
    ns = dragoman::step_products_ns(**model, num_rows);
  });
  return ns;
}
