// Repeats recorded calls of the native engine (tests/recorded_calls.py) on an instruction set, and compares all results
// and all memory bit for bit.
//
//   replay                              prints the instruction sets of this CPU
//   replay INSTRUCTION_SET FILE ...     exits with 1 after the first difference
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
const char* dragoman_error();
const char* dragoman_instruction_sets();
void* dragoman_model_new(void*, const char*);
int dragoman_model_set_embedding(void*, int, void*, void*);
int dragoman_model_set_positions(void*, int, void*);
int dragoman_model_set_product(void*, int, int, int, void*, void*, void*, float, int, int);
int dragoman_model_set_norm(void*, int, int, int, void*, void*);
int dragoman_encode(void*, int, void*, void*, void*, int);
void* dragoman_batch_new(void*);
int64_t dragoman_model_scratch_bytes(void*);
int64_t dragoman_batch_bytes(void*);
int dragoman_batch_add(void*, int, void*, int64_t, int, void*, int);
int dragoman_batch_keep(void*, void*, int);
int dragoman_batch_cross(void*, int, void*);
int dragoman_batch_step(void*, int, void*, void*, void*, int, int, void*, void*);
int dragoman_batch_search(void*, void*);
}

namespace {

enum Kind { kNumber, kFloat, kHandle, kInstructionSet, kMemory };

struct Value {
  int64_t number = 0;
  double real = 0;
  void* pointer = nullptr;

  operator int() const { return int(number); }
  operator int64_t() const { return number; }
  operator float() const { return float(real); }
  operator void*() const { return pointer; }
  operator const char*() const { return static_cast<const char*>(pointer); }
};

struct Memory {
  explicit Memory(std::vector<char> before)
      : expected(std::move(before)),
        size(expected.size()),
        allocated(size + 128),
        content(allocated.data() + (64 - reinterpret_cast<uintptr_t>(allocated.data()) % 64)) {
    std::copy(expected.begin(), expected.end(), content);
  }

  std::vector<char> expected;
  size_t size;
  std::vector<char> allocated;
  char* content;  // aligned to a cache line and followed by readable bytes, as the library requires for encoder outputs
  std::vector<std::pair<size_t, int64_t>> addresses;  // of pointers in the recording, by offset
};

using Function = std::function<Value(const std::vector<Value>&)>;

template <class Result, class... Types, size_t... I>
Value call(Result (*function)(Types...), const std::vector<Value>& values, std::index_sequence<I...>) {
  Value result;
  if constexpr (std::is_pointer_v<Result>) result.pointer = function(values.at(I)...);
  else result.number = function(values.at(I)...);
  return result;
}

template <class Result, class... Types>
Function wrapped(Result (*function)(Types...)) {
  return [function](const std::vector<Value>& values) {
    return call(function, values, std::index_sequence_for<Types...>());
  };
}

const std::map<std::string, Function> kFunctions = {
    {"model_new", wrapped(dragoman_model_new)},
    {"model_set_embedding", wrapped(dragoman_model_set_embedding)},
    {"model_set_positions", wrapped(dragoman_model_set_positions)},
    {"model_set_product", wrapped(dragoman_model_set_product)},
    {"model_set_norm", wrapped(dragoman_model_set_norm)},
    {"encode", wrapped(dragoman_encode)},
    {"model_scratch_bytes", wrapped(dragoman_model_scratch_bytes)},
    {"batch_new", wrapped(dragoman_batch_new)},
    {"batch_bytes", wrapped(dragoman_batch_bytes)},
    {"batch_add", wrapped(dragoman_batch_add)},
    {"batch_keep", wrapped(dragoman_batch_keep)},
    {"batch_cross", wrapped(dragoman_batch_cross)},
    {"batch_step", wrapped(dragoman_batch_step)},
    {"batch_search", wrapped(dragoman_batch_search)},
};

class Replay {
 public:
  Replay(const char* path, const char* instruction_set)
      : file_(path, std::ios::binary), instruction_set_(instruction_set) {
    file_.exceptions(std::ios::failbit | std::ios::badbit);
  }

  // Returns whether all results and all memory are equal.
  bool run() {
    for (; file_.peek() != EOF; ++num_calls_) {
      const std::vector<char> name = blob();
      name_.assign(name.begin(), name.end());
      const size_t first = memories_.size();  // earlier memory is kept, because batches read encoder outputs
      std::vector<Value> values(size());
      for (Value& value : values) value = argument();
      const Value result = kFunctions.at(name_)(values);
      if (result.number != number()) return fail("result", 0);
      if (name_ == "model_new" || name_ == "batch_new") {
        if (!result.pointer) return fail("handle", 0);
        handles_.push_back(result.pointer);
      }
      for (size_t m = first; m < memories_.size(); ++m) {
        Memory& memory = memories_[m];
        for (const auto& [offset, address] : memory.addresses)
          std::memcpy(&memory.content[offset], &address, sizeof(address));
        for (size_t i = 0; i < memory.size; ++i)
          if (memory.content[i] != memory.expected[i]) return fail("byte", i);
        num_bytes_ += memory.size;
      }
    }
    std::printf("%s: %d calls, %zu bytes\n", instruction_set_, num_calls_, num_bytes_);
    return true;
  }

 private:
  bool fail(const char* what, size_t index) const {
    std::printf("%s: call %d, %s: different %s %zu; last error: %s\n", instruction_set_, num_calls_, name_.c_str(),
                what, index, dragoman_error());
    return false;
  }

  template <class T = int64_t>
  T number() {
    T number;
    file_.read(reinterpret_cast<char*>(&number), sizeof(number));
    return number;
  }

  size_t size() { return size_t(number()); }

  std::vector<char> blob() {
    std::vector<char> content(size());
    file_.read(content.data(), std::streamsize(content.size()));
    return content;
  }

  Value argument() {
    Value value;
    switch (number()) {
      case kNumber: value.number = number(); break;
      case kFloat: value.real = number<double>(); break;
      case kHandle: value.pointer = handles_.at(size()); break;
      case kInstructionSet: number(), value.pointer = const_cast<char*>(instruction_set_); break;
      case kMemory: {
        Memory& memory = memories_.emplace_back(blob());
        if (std::vector<char> after = blob(); !after.empty()) memory.expected = std::move(after);
        for (size_t i = 0, num_pointers = size(); i < num_pointers; ++i) {
          const size_t offset = size();
          const Value target = argument();
          int64_t address;
          std::memcpy(&address, &memory.content[offset], sizeof(address));
          std::memcpy(&memory.content[offset], &target.pointer, sizeof(target.pointer));
          memory.addresses.emplace_back(offset, address);
        }
        value.pointer = memory.content;
        break;
      }
      default: throw std::runtime_error("unknown kind of argument");
    }
    return value;
  }

  std::ifstream file_;
  const char* instruction_set_;
  std::string name_;  // of the current call
  std::vector<void*> handles_;
  std::deque<Memory> memories_;  // references stay valid
  int num_calls_ = 0;
  size_t num_bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) std::puts(dragoman_instruction_sets());
  for (int i = 2; i < argc; ++i)
    if (!Replay(argv[i], argv[1]).run()) return 1;
}
