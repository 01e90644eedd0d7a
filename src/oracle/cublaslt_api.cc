#if defined(MORACLE_WITH_CUBLASLT)
#include "oracle/cublaslt_api.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <vector>

#include "base/text.h"

namespace moracle::cublaslt {
namespace {

// The calls used here are the same in both versions. Newest first: it has the faster kernels.
constexpr int kVersions[] = {13, 12};

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "cuBLASLt", std::move(need), std::move(fact)};
}

Result<Api> load(const std::string& name) {
  // Never closed: the library keeps state of its own per GPU.
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    return wrong(name, said != nullptr ? said : name + " does not load");
  }
  Api api;
  const char* lacking = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    if (function == nullptr && lacking == nullptr) lacking = symbol;
  };
#define X(function) find(api.function, #function);
#include "oracle/cublaslt_functions.inc"
#undef X
  if (lacking != nullptr) return wrong("another version", str(name, " has no ", lacking));
  return api;
}

Result<Api> load_newest() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  std::vector<std::string> facts;
  for (const int version : kVersions) {
    const std::string name = str("libcublasLt.so.", version);
    // A library of a later CUDA would load, and fail at the first call.
    if (driver / 1000 < version) {
      facts.push_back(str(name, " needs a driver of CUDA ", version));
      continue;
    }
    Result<Api> api = load(name);
    if (api) return api;
    facts.push_back(api.error().fact);
  }
  return wrong("libcublasLt.so.13 or libcublasLt.so.12", join(facts, "; "));
}

}  // namespace

const Result<Api>& api() {
  static const Result<Api> kApi = load_newest();
  return kApi;
}

}  // namespace moracle::cublaslt
#endif
