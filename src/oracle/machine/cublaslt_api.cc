#if defined(MORACLE_WITH_CUBLASLT)
#include "oracle/machine/cublaslt_api.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "base/text.h"
#include "oracle/machine/nvidia_packages.h"
#include "oracle/machine/shared_library.h"

namespace moracle::cublaslt {
namespace {

// The calls used here are the same in both versions. Newest first: it has the faster kernels.
constexpr int kVersions[] = {13, 12};

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "cuBLASLt", std::move(need), std::move(fact)};
}

Result<Api> load(const std::string& name) {
  SharedLibrary library(name, nvidia_package_folders());
  if (!library.load_error().empty()) return wrong(name, library.load_error());
  Api api;
#define X(function) library.find(api.function, #function);
#include "oracle/machine/cublaslt_functions.inc"
#undef X
  if (!library.missing().empty()) return wrong("another version", library.missing());
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
