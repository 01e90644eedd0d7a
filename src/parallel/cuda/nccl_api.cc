#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/nccl_api.h"

#include <dlfcn.h>

#include "base/text.h"

namespace moracle::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
// The first version with ncclConfig_t's fields for communicators that do not block, and with all
// collectives on them.
constexpr int kLeastVersion = 21403;

Error wrong_library(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "NCCL", std::move(need), std::move(fact)};
}

Result<Api> load() {
  // Never closed: the library has threads of its own.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    return wrong_library(kLibrary, said != nullptr ? said : str(kLibrary, " does not load"));
  }
  Api api;
  const char* lacking = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    if (function == nullptr && lacking == nullptr) lacking = symbol;
  };
#define X(function) find(api.function, #function);
#include "parallel/cuda/nccl_functions.inc"
#undef X
  if (lacking != nullptr)
    return wrong_library("another version", str(kLibrary, " has no ", lacking));
  if (api.ncclGetVersion(&api.version) != ncclSuccess || api.version < kLeastVersion)
    return wrong_library("version " + version_text(kLeastVersion) + " or later",
                         str(kLibrary, " is ", version_text(api.version)));
  return api;
}

}  // namespace

const Result<Api>& api() {
  static const Result<Api> kApi = load();
  return kApi;
}

std::string version_text(int version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string name(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return str("NCCL's result ", static_cast<int>(result));
  }
}

}  // namespace moracle::nccl
#endif
