// One program holds all fuzz targets: its links in the build folder have their names.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#define MORACLE_FUZZ_TARGET(name)            \
  namespace moracle::testing::name {         \
  int run(const uint8_t* data, size_t size); \
  }
#include "fuzz/targets.inc"
#undef MORACLE_FUZZ_TARGET

namespace {

struct Target {
  std::string_view name;
  int (*run)(const uint8_t* data, size_t size);
};

#define MORACLE_FUZZ_TARGET(name) {#name, moracle::testing::name::run},
constexpr Target kTargets[] = {
#include "fuzz/targets.inc"
};

const Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** argv) {
  std::string_view program = **argv;
  program.remove_prefix(program.rfind('/') + 1);  // npos + 1 is 0
  for (const Target& target : kTargets) {
    if (target.name == program) chosen = &target;
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "start the program as one of these:\n");
  for (const Target& target : kTargets) std::fprintf(stderr, "  %s\n", target.name.data());
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return chosen->run(data, size);
}
