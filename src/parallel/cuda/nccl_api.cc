#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/nccl_api.h"

#include "base/text.h"
#include "oracle/machine/nvidia_packages.h"
#include "oracle/machine/shared_library.h"

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
  SharedLibrary library(kLibrary, nvidia_package_folders());
  if (!library.load_error().empty()) return wrong_library(kLibrary, library.load_error());
  Api api;
#define X(function) library.find(api.function, #function);
#include "parallel/cuda/nccl_functions.inc"
#undef X
  if (!library.missing().empty()) return wrong_library("another version", library.missing());
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
