#if defined(MORACLE_WITH_NCCL_EP)
#include "parallel/cuda/nccl_ep/nccl_ep_api.h"

#include "base/text.h"
#include "oracle/machine/shared_library.h"
#include "parallel/cuda/nccl_api.h"
#include "parallel/cuda/nccl_ep/nccl_ep_load.h"

namespace moracle::nccl {
namespace {

constexpr const char* kEpLibrary = "libnccl_ep.so";
constexpr int kLeastNccl = 23007;
// Structures grow at their end only, so later libraries accept those of this version.
constexpr int kLeastEp = 200;

Result<EpApi> load_ep(int nccl_version, const char* name) {
  const auto wrong = [](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", "nccl_ep", std::move(need), std::move(fact)};
  };
  if (nccl_version < kLeastNccl)
    return wrong("NCCL " + version_text(kLeastNccl) + " or later",
                 str("NCCL ", version_text(nccl_version), " is loaded, and nccl_ep needs ",
                     version_text(kLeastNccl)));
  // Finds the NCCL that is loaded already by its name.
  SharedLibrary library(name);
  if (!library.load_error().empty()) return wrong(name, library.load_error());
  EpApi api;
#define X(function) library.find(api.function, #function);
#include "parallel/cuda/nccl_ep/nccl_ep_functions.inc"
#undef X
  if (!library.missing().empty()) return wrong("another version", library.missing());
  if (api.ncclEpGetVersion(&api.version) != ncclSuccess || api.version < kLeastEp)
    return wrong("nccl_ep " + version_text(kLeastEp) + " or later",
                 str(name, " is ", version_text(api.version), ", and ", version_text(kLeastEp),
                     " is needed"));
  return api;
}

}  // namespace

std::string ep_lacks(int nccl_version, const char* library) {
  const Result<EpApi> loaded = load_ep(nccl_version, library);
  return loaded ? "" : loaded.error().fact;
}

const Result<EpApi>& ep_api() {
  static const Result<EpApi> kApi = []() -> Result<EpApi> {
    if (const Result<Api>& nccl = api(); !nccl) return nccl.error();
    return load_ep(api()->version, kEpLibrary);
  }();
  return kApi;
}

}  // namespace moracle::nccl
#endif
